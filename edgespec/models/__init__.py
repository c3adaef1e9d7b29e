"""Where models come from: hub, cache, directories, packing."""
