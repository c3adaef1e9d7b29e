"""A frozen exam of the demo model: what strangers ask about EdgeSpec, and what makes an answer right.

Written from README.md, docs/ and the commands' help alone, by someone who did not know what the model is
taught. A topic here is a page's, not one of `product`: an answer is read by its checker alone. The weights of
2026-11-22 were chosen before they took it. Their training data had not excluded these questions; data drawn
since do (`product_questions.is_held_out_question`). `DRAWN` are those that occurred.
"""

from __future__ import annotations

from edgespec.demo_model.recipe import (
    product_exam_chat,
    product_exam_commands,
    product_exam_scripts,
    product_exam_speed,
    product_exam_start,
    product_exam_terms,
)
from edgespec.demo_model.recipe.product_asked import Asked

EXAM: tuple[Asked, ...] = (
    *product_exam_start.QUESTIONS, *product_exam_chat.QUESTIONS, *product_exam_commands.QUESTIONS,
    *product_exam_scripts.QUESTIONS, *product_exam_terms.QUESTIONS, *product_exam_speed.QUESTIONS,
)  # fmt: skip

# Normalised. 59 of the 596 occur in 200,000 conversations drawn before.
DRAWN = frozenset(
    (
        "/undo",
        "best drafter",
        "chat vs generate",
        "default seed",
        "delete my last message",
        "do i need a c compiler",
        "do i need a gpu",
        "does a faster ssd help",
        "does it work with asyncio",
        "does it work without internet",
        "does more memory make it faster",
        "does packing need a lot of ram",
        "edgespec",
        "edgespec or airllm",
        "exit codes",
        "explain the cascade drafter",
        "gemma 2 9b",
        "how do i download a model",
        "how do i uninstall it",
        "how large is the context by default",
        "how to get tokens one by one in python",
        "i trained adapters how do i use them",
        "is packing necessary",
        "is there a config file",
        "is there an async api",
        "mac support",
        "multiline input",
        "new chat",
        "ngram",
        "quit",
        "qwen2 5-7b-instruct works",
        "qwen3",
        "speed it up",
        "tab completion",
        "telemetry",
        "what does ctrl-d do here",
        "what does edgespec pack do",
        "what does streaming a model mean",
        "what does temperature 0 mean",
        "what is edgespec train",
        "what is peak 7 9 gb of 8 gb",
        "what is the default drafter",
        "what is the default temperature",
        "what is the target model",
        "what is top-p",
        "what models work",
        "whats /show",
        "whats speculative decoding",
        "whats the difference to airllm",
        "where do i get models",
        "where do i put my hugging face token",
        "which models are supported",
        "which precisions can i choose",
        "which python do i need",
        "who you are",
        "why do i get the same answer every time",
        "why not just use ollama",
        "why would i pack a model",
        "wipe the chat",
    )
)
