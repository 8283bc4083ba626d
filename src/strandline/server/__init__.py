"""The HTTP server of a lake."""
