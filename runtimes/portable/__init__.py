"""Networks in numpy: what a client without torch drafts with."""
