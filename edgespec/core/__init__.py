"""The loop: trees, verification, acceptance, sampling."""
