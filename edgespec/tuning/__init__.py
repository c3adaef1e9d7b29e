"""What a machine can run, how fast, at which dial, with which settings: predicted, and recommended."""
