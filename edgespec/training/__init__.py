"""Training of drafters, and of the bundled demo model."""
