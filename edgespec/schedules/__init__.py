"""When drafting happens, relative to verification."""
