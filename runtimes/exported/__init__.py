"""What engines of exported models share: the host's part of a pass, and the cache. Needs no torch."""
