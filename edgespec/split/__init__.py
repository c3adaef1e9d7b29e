"""A target on a server, its drafter on the client: the frames between them, and both ends. docs/split.md."""
