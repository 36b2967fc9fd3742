"""The shapes of answers, for the OpenAPI document alone (contract §1.3, §2, §3).

Every field that an answer always has is required, null where it may be null; a field with a default may be missing.
Nothing is checked against these while serving: a test does that, and holds the lists of fields beside the contract's.
"""
