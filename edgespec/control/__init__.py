"""How much to draft, from what it was measured to cost and give."""
