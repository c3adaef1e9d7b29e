"""The HTTP server behind `edgespec serve`."""
