"""The cascade (CATS): drafting inside the target, with a shallow verifier."""
