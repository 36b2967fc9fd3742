"""The routes of the Lium API, by resource. Handlers are short: find the caller, ask the world, show the rows."""
