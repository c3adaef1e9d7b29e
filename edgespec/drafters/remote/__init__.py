"""A drafter on a server: the end that asks and the end that drafts; docs/split.md."""
