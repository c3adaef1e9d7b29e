"""Who proposes the token tree."""
