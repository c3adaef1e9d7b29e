"""Many conversations on one engine."""
