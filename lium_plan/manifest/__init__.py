"""YAML files to a tree with places (`source`), to a checked `Manifest` (`load`), to `Desired` (`expand`).

Pure but for reading files. Importing the package loads neither pydantic nor jsonschema; `load.load` does.
"""
