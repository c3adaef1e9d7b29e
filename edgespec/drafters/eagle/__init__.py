"""EAGLE: a drafter that says the target's next features, from its last one."""
