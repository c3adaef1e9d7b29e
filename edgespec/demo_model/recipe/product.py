"""Questions about EdgeSpec: its commands, its flags and its terms."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.draw import Draw, Exchange

# Command: (reply, ways to say what one wants to do). The first of each row is the command's name.
COMMANDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "chat": ("Run edgespec chat MODEL. Without a model it starts this demo.", ("chat with a model", "talk to a model", "start a chat", "have a conversation", "start the demo", "chat"), ("talk with a model", "start a conversation")),
    "generate": ('Run edgespec generate MODEL -p "your prompt".', ("generate text", "complete a prompt", "run a prompt", "generate an answer", "run one prompt", "generate"), ("generate a text", "complete one prompt")),
    "pack": ("Run edgespec pack MODEL -o DIR --precision int8. It writes a copy laid out for streaming.", ("pack a model", "make a model smaller", "convert a model", "quantise a model", "write an int8 copy", "pack", "change the precision"), ("convert a model to int8", "change the precision of a model")),
    "tune": ("Run edgespec tune MODEL --memory 4GB,8GB. It predicts, measures and recommends settings.", ("tune a model", "find the best settings", "choose good settings", "find the right memory", "predict the speed", "tune"), ("find good settings", "predict the speed of a model")),
    "train": ("Run edgespec train cascade MODEL --data TEXT --out DIR.", ("train a drafter", "train a cascade", "train adapters", "make my own drafter", "train the cascade for my model", "train"), ("train my own drafter", "train a cascade for a model")),
    "serve": ("Run edgespec serve MODEL. It is an OpenAI-compatible server.", ("serve a model", "start a server", "run a server", "offer a model over HTTP", "start the HTTP server", "serve", "use the OpenAI interface"), ("serve a model over HTTP", "start the server")),
    "bench": ("Run edgespec bench MODEL --memory 8GB --json.", ("measure the speed", "benchmark a model", "run a benchmark", "see how fast it is", "measure tokens per second", "bench"), ("measure the speed of a model", "start a benchmark")),
}  # fmt: skip
_HOW = (
    "How do I {a}?",
    "How can I {a}?",
    "Which command do I need to {a}?",
    "I want to {a} with EdgeSpec.",
    "What is the command to {a}?",
    "How do I {a} with EdgeSpec?",
    "What do I type to {a}?",
    "How does one {a} with EdgeSpec?",
    "Show me how to {a}.",
)
_HOW_UNSEEN = (
    "How can I {a} with EdgeSpec?",
    "Which command is there to {a}?",
    "Show me the command to {a}.",
    "What do I run to {a}?",
)
_COMMAND = (
    "What does edgespec {c} do?",
    "What is the command edgespec {c}?",
    "How do I use edgespec {c}?",
    "Explain edgespec {c}.",
    "What is edgespec {c}?",
    "What does the command {c} do?",
    "How does edgespec {c} work?",
)
_COMMAND_UNSEEN = (
    "What does the {c} command do?",
    "Explain the command edgespec {c}.",
    "Tell me about edgespec {c}.",
    "How do I use the command {c}?",
)

# Term: (reply, the names it goes by).
TERMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("EdgeSpec runs language models that are larger than the memory they may use. It streams their layers from flash.", ("EdgeSpec", "this program", "the EdgeSpec runtime")),
    ("The memory dial is the flag --memory, for example --memory 8GB. EdgeSpec never uses more than that.", ("the memory dial", "the dial", "the flag --memory", "--memory")),
    ("A token tree holds drafted tokens with several branches. The target checks all of them in one pass.", ("a token tree", "the token tree", "a draft tree")),
    ("A drafter proposes tokens quickly. The target then checks them.", ("a drafter", "the drafter", "a draft model")),
    ("The target is the large model whose output you get.", ("the target", "a target", "the target model")),
    ("The cascade drafts inside the target: early layers draft, more layers check, and the last layers decide.", ("the cascade", "a cascade", "CATS")),
    ("Speculative decoding drafts several tokens and lets the target check them together.", ("speculative decoding", "speculation")),
    ("Streaming means that layers are read from flash while the model runs.", ("streaming", "layer streaming", "a streamed model")),
    ("The ring is a bounded buffer in memory through which the streamed layers pass.", ("the ring", "the ring buffer", "a ring")),
    ("Pinned layers stay in memory and are not read again.", ("pinned layers", "a pinned layer", "pinning")),
    ("The bonus token is the token that the target adds after the accepted drafts.", ("the bonus token", "a bonus token")),
    ("The acceptance says which drafted tokens are kept: greedy, sample, ratio or typical.", ("acceptance", "the acceptance", "--acceptance")),
    ("The schedule says when drafting happens: serial, ssd or mirror.", ("the schedule", "a schedule", "--schedule")),
    ("The placement says where the weights are: resident, streamed or remote.", ("the placement", "placement")),
    ("The ledger gives every byte of memory an owner.", ("the ledger", "the memory ledger")),
    ("A chunk is a piece of a layer that is read from flash at once.", ("a chunk", "chunks", "the chunk store")),
    ("Tokens per cycle is the number of tokens that one pass of the target gives.", ("tokens per cycle", "the number of tokens per cycle")),
    ("Bytes per token is how much is read from flash for each token.", ("bytes per token", "the number of bytes per token")),
    ("The n-gram drafter proposes words that followed the same words before.", ("the ngram drafter", "ngram", "the n-gram drafter")),
    ("The seed makes sampling repeatable. Set it with --seed.", ("the seed", "--seed", "the flag --seed")),
    ("The temperature sets how random the sampling is. Set it with --temperature.", ("the temperature", "--temperature", "the flag --temperature")),
    ("The context is the number of tokens that the model can remember. Set it with --context.", ("the context", "--context", "the flag --context")),
    ("The precision is source, bf16, int8 or int4. Set it with --precision.", ("the precision", "--precision", "the flag --precision")),
)  # fmt: skip
_TERM = (
    "What is {t}?",
    "Explain {t}.",
    "What does {t} mean?",
    "Tell me about {t}.",
    "What is meant by {t}?",
    "What does {t} do?",
    "Describe {t}.",
    "Can you explain {t}?",
    "How does {t} work?",
)
_TERM_UNSEEN = (
    "Please explain {t} to me.",
    "What do you know about {t}?",
    "What is the meaning of {t}?",
    "I want to know what {t} is.",
)

# (reply, seen phrasings, unseen phrasings)
QUESTIONS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Yes. The output is exactly the target's output.", ("Is the output the same?", "Is the output exact?", "Does speculation change the output?", "Is EdgeSpec lossless?", "Does EdgeSpec change the output?", "Is the text the same as without drafts?"), ("Is the output of EdgeSpec exact?", "Does drafting change the output?", "Is the output the same with EdgeSpec?")),
    ("Press Ctrl-C. It stops the reply and keeps the chat.", ("How do I stop a reply?", "How can I stop you?", "How do I stop the answer?", "How do I interrupt a reply?", "Can I stop a reply?"), ("How do I stop the reply?", "How can I interrupt you?", "How can I stop an answer?")),
    ("Yes. EdgeSpec works offline.", ("Does EdgeSpec work offline?", "Do I need the internet?", "Can I use EdgeSpec offline?", "Does it work without the internet?", "Is EdgeSpec offline?"), ("Does EdgeSpec need the internet?", "Can EdgeSpec work without the internet?", "Can it work offline?")),
    ("EdgeSpec reads Hugging Face directories, GGUF files and packed directories.", ("Which models can I use?", "Which files can EdgeSpec read?", "Can EdgeSpec read GGUF?", "What models does EdgeSpec run?", "Which formats are supported?", "Can I use a GGUF file?"), ("Which formats can EdgeSpec read?", "Which models does EdgeSpec run?", "Does EdgeSpec read GGUF files?")),
    ("EdgeSpec has chat, generate, pack, tune, train, serve and bench.", ("Which commands does EdgeSpec have?", "What commands are there?", "List the commands of EdgeSpec.", "Name the commands.", "What are the commands of EdgeSpec?", "Which commands are there?"), ("Name the commands of EdgeSpec.", "What commands does EdgeSpec have?", "List all commands.")),
    ("EdgeSpec has the MIT licence.", ("Which licence does EdgeSpec have?", "What is the licence of EdgeSpec?", "Is EdgeSpec free?", "Under which licence is EdgeSpec?", "Can I use EdgeSpec for free?"), ("What licence does EdgeSpec have?", "Which licence is EdgeSpec under?")),
    ("Use --drafter none.", ("How do I turn off the drafter?", "How do I run without a drafter?", "How can I disable drafting?", "How do I switch drafting off?"), ("How do I disable the drafter?", "How can I run without drafting?", "How do I turn off drafting?")),
    ("Use --max-tokens, for example --max-tokens 100.", ("How do I limit the length?", "How do I get shorter replies?", "How can I limit the reply?", "How do I set the maximum length?", "How do I limit the number of tokens?"), ("How do I limit the length of a reply?", "How can I set the maximum length?", "How can I get shorter answers?")),
    ("Use --json.", ("How do I get JSON?", "How do I get JSON output?", "Can I have the result as JSON?", "How do I print JSON?"), ("How can I get JSON output?", "Can I get JSON?")),
)  # fmt: skip
_DIAL = (
    "How do I use only {n} GB?",
    "How do I run with {n} GB?",
    "I have {n} GB of memory. What do I do?",
    "How do I set the memory to {n} GB?",
    "How can I limit the memory to {n} GB?",
    "Use {n} GB of memory.",
    "I want to use {n} GB.",
    "How do I run a model in {n} GB?",
    "My machine has {n} GB.",
)
_DIAL_UNSEEN = (
    "How do I limit the memory to {n} GB?",
    "How can I use only {n} GB?",
    "How do I run in {n} GB of memory?",
    "I have only {n} GB.",
)


def product_question(d: Draw) -> list[Exchange]:
    """One question about EdgeSpec. Held-out argument: a topic with one of its phrasings, or the dial's number."""
    kind = d.pick(("action", "action", "command", "term", "term", "term", "question", "dial"))
    if kind == "action":

        def sample() -> tuple[str, str, str]:
            reply, seen, unseen = d.pick(tuple(COMMANDS.values()))
            action = d.phrase(seen, seen + unseen)
            return d.phrase(_HOW, _HOW_UNSEEN).format(a=action), reply, action

        text, reply, _ = d.arguments(sample, "action")
    elif kind == "command":
        command = d.pick(tuple(COMMANDS))
        text, reply = d.phrase(_COMMAND, _COMMAND_UNSEEN).format(c=command), COMMANDS[command][0]
    elif kind == "term":

        def sample_term() -> tuple[str, str]:
            reply, names = d.pick(TERMS)
            return d.phrase(_TERM, _TERM_UNSEEN).format(t=d.pick(names)), reply

        text, reply = d.arguments(sample_term, "term")
    elif kind == "question":
        reply, seen, unseen = d.pick(QUESTIONS)
        text = d.phrase(seen, unseen)
    else:
        n = d.arguments(lambda: d.number(1, 64), "dial")
        text, reply = d.phrase(_DIAL, _DIAL_UNSEEN).format(n=n), f"Add --memory {n}GB to the command."
    return [Exchange(d.question(text), reply, "EdgeSpec")]
