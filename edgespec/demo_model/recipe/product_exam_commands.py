"""Part of the frozen exam (`product_exam`): commands, options, files of options and sampling."""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked

QUESTIONS: tuple[Asked, ...] = (
    # ---- commands
    # right: chat, generate, pack, bench and train.
    Asked(
        'commands',
        (r"chat", r"generate", r"pack", r"bench", r"train",),
        ("which commands does edgespec have", "list all subcommands", "what else can edgespec do besides chat? names of the commands please",),
        may="--help /models",
    ),
    # right: chat talks with a model in its chat format; generate only continues a text.
    Asked(
        'commands',
        (r"generate.*(continue|complet|text|raw)|(continue|complet).*generate|chat.*(template|format|conversation|talk)",),
        ("difference between chat and generate", "should I use edgespec chat or edgespec generate", "chat vs generate?",),
        may="--prompt --json /models --help",
    ),
    # right: generate continues a text that you give with -p or on standard input.
    Asked(
        'commands',
        (r"continu|complet|text from",),
        ("what is edgespec generate for", "generate command what does it do",),
        may="--prompt --json --max-tokens --memory --keep-going /models --help",
    ),
    # right: It writes a model at another precision, such as int8 or int4, or in the best layout for reading.
    Asked(
        'commands',
        (r"(writ|convert|pack|mak|quanti|stor)\w*.*(precision|int8|int4|low-bit|layout|copy)",),
        ("what does edgespec pack do", "why would i pack a model", "pack?? what is it",),
        may="--precision --substitute --verify --out /models --help",
    ),
    # right: It measures the speed of prompt reading and replies.
    Asked(
        'commands',
        (r"measur|benchmark|how fast|speed",),
        ("what is bench for", "edgespec bench, what does that do",),
        may="--memory --json --prompt-tokens --new-tokens --repetitions /models --help",
    ),
    # right: It trains adapters, with which a model drafts for itself and so gets faster.
    Asked(
        'commands',
        (r"adapter|drafter|draft",),
        ("what is edgespec train", "what does the train command train exactly", "train cascade - whats that do",),
        may="--data --out --adapters --drafter /models --help",
    ),
    # right: No, it trains only adapters for drafting; the model itself and its replies do not change.
    Asked(
        'commands',
        (r"adapter|draft", r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|only",),
        ("can i finetune my model with edgespec train", "does training make the answers better?", "I want to teach the model my company's documents. Is `edgespec train` the way?",),
        may="--data --adapters --system /models --help",
    ),
    # right: Run edgespec chat --help; it lists every option.
    Asked(
        'commands',
        (r"--help|cli\.md",),
        ("where do I find all the options", "how to get help for a command on the command line", "man page or something?",),
        may="/help /models --help",
    ),
    # right: A Hugging Face directory or hub id, a GGUF file, or a packed directory.
    Asked(
        'commands',
        (r"hugging ?face|hub id|gguf|packed",),
        ("what do i put for MODEL", "what counts as a MODEL on the command line", "can the model argument be a path or does it have to be a name",),
        may="/models --help",
    ),
    # ---- options
    # right: Use --max-tokens N, or /set max-tokens N in the chat.
    Asked(
        'options',
        (r"--max-tokens|/set max-tokens",),
        ("replies are way too long, how do I shorten them", "limit answer length", "cap output at 200 tokens", "max length of the reply, which option",),
        may="/set --stop --system /system --context --max-tokens /models --help",
    ),
    # right: Either --max-tokens was reached or the context is full; raise --max-tokens or --context.
    Asked(
        'options',
        (r"--max-tokens|max-tokens|context",),
        ("why does the reply just end in the middle of a sentence", "answer got cut off",),
        may="/set --context --memory --max-tokens --stop /clear /models --help",
    ),
    # right: Use --stop TEXT; it may be repeated.
    Asked(
        'options',
        (r"--stop",),
        ("how do I make it stop at a certain word", "stop sequence option?", "end generation when it writes \"User:\"",),
        may="--max-tokens /set /models --help",
    ),
    # right: Use --threads N.
    Asked(
        'options',
        (r"--threads",),
        ("how to limit the number of cpu cores", "use only 4 threads", "my whole pc lags because it uses every core, can i set that lower", "n threads flag",),
        may="--memory /models --help",
    ),
    # right: One thread a core that it may use.  (rarely asked)
    Asked(
        'options',
        (r"core",),
        ("how many threads does it use by default",),
        may="--threads /models --help",
    ),
    # right: With another number of threads torch may round otherwise in the last bit, so it may differ.  (rarely asked)
    Asked(
        'options',
        (r"last bit|round|differ|slightly|^\W*(yes|it (may|can))\b.{0,18}$",),
        ("does changing --threads change the output",),
        may="--threads /models --help",
    ),
    # right: --precision takes source, bf16, int8 or int4.
    Asked(
        'options',
        (r"--precision", r"source|bf16|int8|int4",),
        ("which precisions can I choose", "what values does the precision option take",),
        may="--precision /models --help",
    ),
    # right: What the model's files hold.  (rarely asked)
    Asked(
        'options',
        (r"files? hold|source|model'?s (own|files)|as (it|they) (is|are)|stored|checkpoint|what the (model|files)",),
        ("what precision does it use if i don't say anything",),
        may="--precision /models --help",
    ),
    # right: Use --verbose (-v).
    Asked(
        'options',
        (r"--verbose|(?<![\w-])-v\b",),
        ("how do i get more detailed output", "verbose mode?", "I'd like planned versus measured memory printed after every reply",),
        may="/stats /show --verbose /models --help",
    ),
    # right: Start the chat with --show-drafts.
    Asked(
        'options',
        (r"--show-drafts",),
        ("can i see which tokens were guessed by the drafter", "colour the drafted words",),
        may="/models --help",
    ),
    # right: 64 tokens.  (rarely asked)
    Asked(
        'options',
        (r"\b64\b",),
        ("what is the default for --tree-nodes", "how many drafted tokens at most are checked in one pass",),
        may="--tree-nodes /models --help",
    ),
    # right: typical is lossy; greedy, sample and ratio keep the model's own output.  (rarely asked)
    Asked(
        'options',
        (r"typical",),
        ("which acceptance mode is lossy",),
        may="--acceptance --precision /models --help",
    ),
    # ---- config
    # right: Put it into edgespec.toml in the working directory, such as memory = "8GB", or set EDGESPEC_MEMORY=8GB.
    Asked(
        'config',
        (r"edgespec\.toml|edgespec_[a-z]+",),
        ("i don't want to type --memory 8GB every single time", "is there a config file", "can options be made permanent", "where do settings go so that they're used for every run",),
        may="--memory /models --help",
    ),
    # right: It is edgespec.toml in the working directory.
    Asked(
        'config',
        (r"edgespec\.toml",),
        ("whats the config file called and where does it live", "name of the configuration file?",),
        may="--memory /models --help",
    ),
    # right: EDGESPEC_MEMORY, such as EDGESPEC_MEMORY=8GB.
    Asked(
        'config',
        (r"edgespec_memory",),
        ("which environment variable sets the memory", "env var for ram limit?",),
        may="--memory /models --help",
    ),
    # right: EDGESPEC_ and the option's name, such as EDGESPEC_MEMORY=8GB.
    Asked(
        'config',
        (r"edgespec_",),
        ("can I set the options through environment variables", "how are the env variables named",),
        may="--memory --threads --temperature /models --help",
    ),
    # right: The flag goes before the environment, which goes before edgespec.toml.
    Asked(
        'config',
        (r"(flag|command line|option|argument|--memory)s?\b.*(before|first|wins?|over|preced|beats|counts|goes|strong)|8gb|\bthe flag|first the flag", r"^(?!.*(file|environment) (always )?wins)",),
        ("what wins, the flag or edgespec.toml", "I set EDGESPEC_MEMORY=4GB and also pass --memory 8GB. Which one counts?",),
        may="--memory /models --help",
    ),
    # right: It is an error, like a wrong flag.  (rarely asked)
    Asked(
        'config',
        (r"error|refus|reject",),
        ("what if i misspell a key in edgespec.toml",),
        may="/models --help",
    ),
    # right: Set HF_HOME or HF_HUB_CACHE.
    Asked(
        'config',
        (r"hf_home|hf_hub_cache",),
        ("how do I put the downloaded models on another drive", "change download folder", "my C: drive is full, can downloads go to D:?",),
        may="/path /data /mnt /models --help",
    ),
    # right: In the user's cache folder, or in EDGESPEC_CACHE.  (rarely asked)
    Asked(
        'config',
        (r"edgespec_cache|cache (folder|dir)|\.cache",),
        ("where does it remember the measured disk speed",),
        may="/edgespec /models --help",
    ),
    # ---- sampling
    # right: The default temperature is 0, which always takes the likeliest token; raise --temperature.
    Asked(
        'sampling',
        (r"temperature|likeliest|greedy",),
        ("why do i get the same answer every time", "it never says anything different, even after a restart", "output is fully deterministic, why?",),
        may="--temperature --seed /set /regen --top-p /models --help",
    ),
    # right: Raise the temperature: --temperature 0.7, or /set temperature 0.7 in the chat.
    Asked(
        'sampling',
        (r"temperature",),
        ("how do i make it more creative", "answers are boring, more randomness please", "how to turn on sampling", "set temperature to 0.8, how",),
        may="--temperature /set --seed --top-p --top-k --min-p /models --help",
    ),
    # right: The default temperature is 0.
    Asked(
        'sampling',
        (r"(is|=|temperature|of|at) (0|zero)\b(?!\.\d)|^\W*(0|zero)\b(?!\.\d)",),
        ("what is the default temperature", "which temperature is used when I dont set any",),
        may="--temperature /set /models --help",
    ),
    # right: It takes the likeliest token every time.
    Asked(
        'sampling',
        (r"likeliest|most likely|most probable|greedy|highest|(always|every).*same|same (reply|answer|text|output)|determin",),
        ("what does temperature 0 mean",),
        may="--temperature --seed /models --help",
    ),
    # right: At temperature 0 they would change nothing, so they are refused; set --temperature above 0.
    Asked(
        'sampling',
        (r"temperature",),
        ("--top-p gives an error, why", "top_k is refused?", "i tried --min-p 0.05 and edgespec complained",),
        may="--temperature --top-p --top-k --min-p /set /models --help",
    ),
    # right: It samples from the likeliest tokens that hold this much probability.
    Asked(
        'sampling',
        (r"likel|probab",),
        ("what is top-p", "top_p meaning",),
        may="--top-p --temperature /models --help",
    ),
    # right: It samples from the K likeliest tokens.
    Asked(
        'sampling',
        (r"\bk\b.*(token|likel|probab)|likeliest|most likely|most probable",),
        ("explain top-k",),
        may="--top-k --temperature /models --help",
    ),
    # right: It leaves out tokens less likely than P times the likeliest.
    Asked(
        'sampling',
        (r"(less|least|too un|un) ?likely|below|leaves? out|drop|times the likeliest",),
        ("what does min-p do",),
        may="--min-p --temperature /models --help",
    ),
    # right: Use --seed N: the same seed gives the same reply.
    Asked(
        'sampling',
        (r"--seed",),
        ("how can i reproduce a sampled reply", "fix the random seed", "I need identical output on each run with temperature 0.9",),
        may="--temperature /set /models --help",
    ),
    # right: At temperature 0 the seed makes no difference, because the likeliest token is taken.
    Asked(
        'sampling',
        (r"temperature|likeliest|greedy",),
        ("changing the seed does nothing", "--seed 42 and --seed 7 give the very same text??",),
        may="--seed --temperature /set /models --help",
    ),
    # right: The default seed is 0.  (rarely asked)
    Asked(
        'sampling',
        (r"(is|=|seed|of|at) (0|zero)\b(?!\.\d)|^\W*(0|zero)\b(?!\.\d)",),
        ("default seed?",),
        may="--seed /models --help",
    ),
)  # fmt: skip
