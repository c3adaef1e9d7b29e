"""Part of the frozen exam (`product_exam`): drafters, speed, bench, downloads and Python."""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked

QUESTIONS: tuple[Asked, ...] = (
    # ---- drafters
    # right: Leave it at auto, which takes what makes replies faster; a substitute helps a streamed model most.
    Asked(
        'drafters',
        (r"\bauto\b|substitute|automatic|itself",),
        ("which drafter should i take", "best drafter?", "do i have to choose a drafter myself",),
        may="--drafter --substitute --draft-model --adapters /models --help",
    ),
    # right: Start with --drafter none.
    Asked(
        'drafters',
        (r"--drafter none",),
        ("how do i turn off drafting", "disable speculative decoding", "run without any drafter",),
        may="--drafter /models --help",
    ),
    # right: auto, which takes what makes replies faster.
    Asked(
        'drafters',
        (r"auto",),
        ("what is the default drafter",),
        may="--drafter /models --help",
    ),
    # right: ngram, model, substitute and cascade, and some pairs of them.
    Asked(
        'drafters',
        (r"ngram|n-gram", r"substitute", r"cascade|adapter", r"model",),
        ("which drafters are there", "list the drafter kinds",),
        may="--drafter --draft-model --substitute --adapters /models --help",
    ),
    # right: Use --draft-model, such as edgespec chat Qwen3-8B --draft-model Qwen3-0.6B.
    Asked(
        'drafters',
        (r"--draft-model",),
        ("how do i use a small model to speed up a big one", "option for a draft model", "use Qwen3-0.6B as drafter for Qwen3-8B",),
        may="--memory --drafter /models --help",
    ),
    # right: A small one with the same tokenizer, such as one of the same family.
    Asked(
        'drafters',
        (r"tokenizer|family",),
        ("which small model can serve as draft model", "can i draft for llama with a qwen model?", "requirements for the draft model?",),
        may="--draft-model /models --help",
    ),
    # right: edgespec train cascade MODEL --data my-text/ --out adapters
    Asked(
        'drafters',
        (r"train cascade",),
        ("how do I train adapters", "how are the adapters made", "create a drafter for my own model",),
        may="--data --out --adapters --memory /models --help",
    ),
    # right: Start with --adapters DIR.
    Asked(
        'drafters',
        (r"--adapters",),
        ("i trained adapters, how do i use them now", "load trained adapters into chat",),
        may="--memory --drafter /models --help",
    ),
    # right: A .txt or .jsonl file, or a directory of them.  (rarely asked)
    Asked(
        'drafters',
        (r"\btxt|jsonl|text files?|plain text|texts",),
        ("what data does train cascade need",),
        may="--data /models --help",
    ),
    # right: No, n-grams draft by themselves without any set-up.  (rarely asked)
    Asked(
        'drafters',
        (r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|by itself|themselves|automatic|set-?up|n-?grams?",),
        ("does ngram drafting need any setup",),
        may="--drafter /models --help",
    ),
    # ---- speed
    # right: Because the layers that do not fit are read from the disk in every pass.
    Asked(
        'speed',
        (r"(stream|read|load).*(disk|flash|ssd|drive|pass|token)|(disk|flash|ssd|drive).*(rate|speed|slow|limit|bottleneck|read)|(not|n't) fit|(too )?little memory|bottleneck",),
        ("why is it so slow", "one token every three seconds... why?", "What's the bottleneck?", "it's crawling. normal?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: Give it more --memory, or drafts: pack with --substitute int4 or use --draft-model.
    Asked(
        'speed',
        (r"--memory|(more|raise|larger|higher|bigger|increase).*(memory|ram\b|dial)|--draft-model|--substitute|--adapters|substitute|draft.*fast|fast.*draft|(use|with|add|take|give) .*draft|low-bit|smaller|int4|int8|--precision|ssd|nvme|faster disk",),
        ("how can i make it faster", "speed it up?", "any tips for more tokens per second", "I get 0.3 tok/s with an 8B on 4GB, what can I do to improve that?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: Yes, a streamed model runs at the disk's rate, so a fast SSD matters.
    Asked(
        'speed',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|(disk|flash|ssd|nvme|drive).*(rate|speed|fast|read|matter|help|bottleneck|limit|stream)|fast.*(disk|ssd|drive|flash)|stream.*(disk|flash|ssd)",),
        ("does a faster ssd help", "nvme vs hard disk, does it matter for edgespec", "is the speed of my drive important?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: It only reads the weights from the disk, it does not write them.
    Asked(
        'speed',
        (r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|only read|reads? only|n't write|not (write|written)|no writ|just read|never writ|reads (the )?(weights|layers)|writes nothing|(reading|reads?) .*(not|n't|no)",),
        ("will this wear out my ssd", "does streaming the model kill the lifespan of my nvme drive",),
        may="/models --help",
    ),
    # right: The plan predicts it at the start, and edgespec bench MODEL measures it.
    Asked(
        'speed',
        (r"\bbench\b|/show plan|predict|/stats",),
        ("how do i find out how fast a model will run on my machine", "can it predict the speed?",),
        may="--memory /show /stats --verbose /models --help",
    ),
    # right: Yes, every byte more that is pinned is one byte less to read, so it is faster.
    Asked(
        'speed',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|fast|less|fewer|pin|speed",),
        ("does more memory make it faster", "if I double the RAM limit will it speed up",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # ---- bench
    # right: edgespec bench MODEL --memory 4GB
    Asked(
        'bench',
        (r"bench",),
        ("how do i benchmark a model", "measure tokens per second properly", "is there a built-in benchmark",),
        may="--memory --json --prompt-tokens --new-tokens --repetitions /stats /models --help",
    ),
    # right: pp is prompt reading, tg are the replies, in tokens a second.  (rarely asked)
    Asked(
        'bench',
        (r"prompt.*(repl|generat|token)|pp .*tg",),
        ("what do pp and tg mean in the bench table",),
        may="--prompt-tokens --new-tokens /models --help",
    ),
    # right: Use -r N (--repetitions); the default is 5.  (rarely asked)
    Asked(
        'bench',
        (r"(?<![\w-])-r\b|--repetitions",),
        ("how to change the number of runs in bench",),
        may="--repetitions /models --help",
    ),
    # right: In benchmarks/README.md, with their commands.
    Asked(
        'bench',
        (r"benchmarks",),
        ("are there published benchmark numbers", "where are figures compared to other programs?",),
        may="/models --help",
    ),
    # right: EdgeSpec streams models larger than memory under a hard limit, with exactly the model's output; llama.cpp rounds activations to 8 bits.
    Asked(
        'bench',
        (r"stream|larger|bigger|8 bits|benchmarks|exactly|mmap|page cache|\bdrafts?\b|hard (limit|cap)",),
        ("how is this different from llama.cpp", "llama.cpp already does mmap, so why edgespec?", "why not just use ollama",),
        may="--memory --substitute /models --help",
    ),
    # right: EdgeSpec also pins what fits, and drafts, so one pass over the weights yields more than one token.
    Asked(
        'bench',
        (r"draft|several tokens|many tokens|more than one token|exact|\bpins?\b|pinned|benchmarks|limit|dial",),
        ("whats the difference to AirLLM", "edgespec or airllm?", "AirLLM also runs 70B on a 4GB card. What do you do better?",),
        may="--memory /models --help",
    ),
    # ---- downloads
    # right: Give its Hugging Face hub id: edgespec chat Qwen/Qwen2.5-7B-Instruct downloads it.
    Asked(
        'downloads',
        (r"hub|hugging ?face",),
        ("where do i get models", "how do i download a model", "can edgespec fetch a model for me",),
        may="--memory /qwen /models --help",
    ),
    # right: In the Hugging Face cache; HF_HOME moves it.
    Asked(
        'downloads',
        (r"hugging ?face|hf_home|hf_hub_cache|cache",),
        ("where are downloaded models stored", "which folder do the models end up in?",),
        may="/huggingface /path /models --help",
    ),
    # right: Use --offline; models are then taken from the disk and the cache only.
    Asked(
        'downloads',
        (r"--offline|hf_hub_offline",),
        ("how do i make sure it never goes online", "offline mode?", "my machine is air-gapped, which option",),
        may="/models --help",
    ),
    # right: Yes, with models that are on the disk; --offline makes sure of it.
    Asked(
        'downloads',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*yes\b|offline|internet|download|locally|bundled", r"^(?!\W*yes\b.{19,}$)|offline|internet|download|local|bundled|disk|cache",),
        ("does it work without internet", "can i use this on a plane",),
        may="--offline /models --help",
    ),
    # right: Set HF_TOKEN to your Hugging Face token.
    Asked(
        'downloads',
        (r"hf_token|token.*hugging|hugging.*token|huggingface-cli|hf auth|\btoken\b.*(hub|account)",),
        ("llama is gated, how do i log in", "401 unauthorized / gated repo when downloading", "where do I put my hugging face token",),
        may="--offline /models --help",
    ),
    # right: Check the path or the hub id: MODEL is a Hugging Face directory or hub id, a GGUF file, or a packed directory.
    Asked(
        'downloads',
        (r"check|path|hub id|spell|hugging ?face|gguf|exist",),
        ("model not found. what did i do wrong", "it can't find my model",),
        may="--offline /models --help",
    ),
    # right: No, everything runs on your own machine; only models are downloaded.
    Asked(
        'downloads',
        (r"^(?!\W*yes\b)", r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|local|own (machine|computer)", r"^\W*(yes|no|nope)\b.{0,18}$|machine|computer|local|sent|upload|leave|internet|send|server|download",),
        ("are my chats sent anywhere", "does it phone home", "Does this upload what I type to some server?", "telemetry?",),
        may="--offline --no-history /models --help",
    ),
    # right: In ~/.local/share/edgespec (on macOS in ~/Library/Application Support), readable by you only.
    Asked(
        'downloads',
        (r"\.local/share|xdg_data_home|application support",),
        ("where does it store my chat history", "what folder is the last conversation kept in",),
        may="--no-history /library --continue /save /models --help",
    ),
    # right: Start with --no-history.
    Asked(
        'downloads',
        (r"--no-history",),
        ("how can i chat without it remembering anything on disk", "private mode?", "don't save what i type",),
        may="--history /models --help",
    ),
    # right: Yes, it runs on your own machine, and the history is readable by you only.
    Asked(
        'downloads',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|local|machine|computer|only you|readable|private|not sent|nothing",),
        ("is my data private with edgespec", "are my conversations confidential?",),
        may="--no-history --offline /models --help",
    ),
    # right: No, only you can read them.  (rarely asked)
    Asked(
        'downloads',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|only (you|readable|by you)|readable|read (them|it|your)|private|yours|permission",),
        ("can other users on this server read my chat history",),
        may="--no-history /models --help",
    ),
    # right: Nothing in a model's files is unpickled or executed, and every length is bounded.  (rarely asked)
    Asked(
        'downloads',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|execut|unpickl|\brun|bounded|code",),
        ("can a malicious model file run code on my machine",),
        may="/models --help",
    ),
    # ---- api
    # right: import edgespec; engine = edgespec.load("model-dir", memory="8GB"), then edgespec.generate(engine, "...").
    Asked(
        'api',
        (r"edgespec\.load|import edgespec",),
        ("how do i use it from python", "python api?", "call edgespec in my own program", "can I import this as a library",),
        may="/models --help",
    ),
    # right: edgespec.load("model-dir", memory="8GB")
    Asked(
        'api',
        (r"memory ?=",),
        ("how to pass the memory limit in python code", "load() keyword for the ram",),
        may="--memory /models --help",
    ),
    # right: Loop over edgespec.stream_generate(engine, prompt), or chat.stream(message).
    Asked(
        'api',
        (r"stream_generate|\.stream\b|astream|chat\.stream",),
        ("how to get tokens one by one in python", "streaming output in the python api",),
        may="/models --help",
    ),
    # right: Use edgespec.Chat(engine), and chat.send("Hello!").
    Asked(
        'api',
        (r"edgespec\.chat|\bchat\(",),
        ("multi-turn conversation in python, which class", "how do i keep a chat going from code",),
        may="/models --help",
    ),
    # right: Yes, with chat.asend, chat.astream, agenerate and astream_generate.
    Asked(
        'api',
        (r"^(?!\W*no\b)", r"asend|astream|agenerate|async|^\W*yes\b.{0,18}$",),
        ("does it work with asyncio", "is there an async api",),
        may="/models --help",
    ),
    # right: Call chat.cancel(), from any thread.  (rarely asked)
    Asked(
        'api',
        (r"cancel|loop",),
        ("cancel a running reply from another thread in python",),
        may="/models --help",
    ),
    # right: edgespec.BudgetError; its smallest is the smallest dial that works.  (rarely asked)
    Asked(
        'api',
        (r"budgeterror",),
        ("which exception is raised in python when memory is too small",),
        may="/models --help",
    ),
    # right: No, the environment and edgespec.toml are read by the command line only.  (rarely asked)
    Asked(
        'api',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|command line|toml|environment|\bcli\b",),
        ("does edgespec.load() read edgespec.toml",),
        may="/models --help",
    ),
    # right: Yes, sessions in several threads share a pass over the weights.  (rarely asked)
    Asked(
        'api',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|session|thread|share|conversation|several",),
        ("can several conversations use one loaded model at the same time",),
        may="/models --help",
    ),
)  # fmt: skip
