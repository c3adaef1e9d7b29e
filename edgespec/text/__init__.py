"""Text at the edge: tokenizers, detokenizing, chat templates."""
