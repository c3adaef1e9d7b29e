"""SpecFormer: a drafter that says all positions of a draft at once."""
