"""Part of the frozen exam (`product_exam`): what EdgeSpec is, installing it, memory, and large models."""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked

QUESTIONS: tuple[Asked, ...] = (
    # ---- what
    # right: EdgeSpec runs language models larger than the memory they may use, with exactly the model's own output.
    Asked(
        'what',
        (r"model", r"(larger|bigger|more|big|huge|large).*(memory|ram)|(memory|ram).*(limit|fit|less|small|dial|little)|(fit).*(memory|ram)",),
        ("so what is this thing actually", "explain edgespec to me like i'm five", "Can you give me a one-sentence summary of what this program does?", "edgespec = ?", "I stumbled over this repo ten minutes ago. What problem does it solve?",),
        may="--memory --context /models --help",
    ),
    # right: For anyone whose model does not fit the memory of the machine, and who wants exactly that model's output.
    Asked(
        'what',
        (r"(memory|ram).*(fit|less|small|little|larger|limit|not enough|than|bigger)|(fit|larger|bigger|small|little|limited|less|not enough|too big|too large|low).*(memory|ram)",),
        ("who would even use this", "Who is EdgeSpec meant for?", "When should I pick this over just loading the model with transformers?", "whats the usecase for edgespec",),
        may="--memory --context /models --help",
    ),
    # right: I am the demo model bundled with EdgeSpec, with 6 million parameters.
    Asked(
        'what',
        (r"demo|bundled|6 million|six million", r"^(?!\W*yes\b)",),
        ("are you chatgpt", "what model am i talking to right now?", "wait, which AI is this? is it GPT-4?", "tell me who you are",),
        may="--memory /models --help",
    ),
    # right: The demo model has 6 million parameters.
    Asked(
        'what',
        (r"6 ?(million|m\b)|six million",),
        ("how many parameters has the demo model", "how big are you? parameter count i mean",),
        may="/models --help",
    ),
    # right: Not always: I am a tiny demo model, and about one in twelve of my answers is wrong.
    Asked(
        'what',
        (r"^(?!\W*yes\b)", r"twelve|\b12\b|tiny|6 million|not always|small|demo|(often|sometimes|may|can) .*(wrong|mistake)",),
        ("can i trust your answers", "how often does the demo model get things wrong?", "The replies here sound a bit silly. Why is the demo this dumb?", "are u always right",),
        may="/models --help",
    ),
    # right: Name it after the command: edgespec chat ~/models/Llama-2-7b-chat-hf --memory 8GB.
    Asked(
        'what',
        (r"edgespec chat [~./\w<\[]",),
        ("how do i swap the demo for a real model", "ok this was cute. how do I load an actual llama now?", "I have a model folder on my disk, what do I type to talk to it", "chat with my own model, how", "start edgespec with a different model pls",),
        may="--memory /models --draft-model --substitute --precision /path /exit --help",
    ),
    # right: No, the demo model is bundled with EdgeSpec, so nothing has to be downloaded.
    Asked(
        'what',
        (r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|bundled|comes with|included|part of|ships|shipped|(nothing|not|n't|no).*download",),
        ("does the demo have to download something first", "Is the demo model fetched from the internet when I type edgespec chat?",),
        may="/models --help",
    ),
    # right: It is under the MIT licence.
    Asked(
        'what',
        (r"\bmit\b",),
        ("license?", "under what licence is it published", "am i allowed to use edgespec at my company", "Can I put this in a commercial product, legally speaking?", "is it open source",),
        may="/models --help",
    ),
    # right: Nothing, it is free under the MIT licence.
    Asked(
        'what',
        (r"\bmit\b|(is|it's|for|costs?) (\w+ )?free|^\W*free|cost.*nothing|^\W*nothing",),
        ("how much does it cost", "do i have to pay for this or need an api key",),
        may="/models --help",
    ),
    # ---- install
    # right: You need Python 3.10 or newer.
    Asked(
        'install',
        (r"3\.10", r"^(?!.*(older|or below|or earlier))",),
        ("which python do i need", "minimum python version", "my server still has python 3.8, is that enough?", "Does EdgeSpec require a particular version of Python?",),
        may="/models --help",
    ),
    # right: Run ./install.sh in the checkout; then .venv/bin/edgespec chat.
    Asked(
        'install',
        (r"install\.sh",),
        ("how do i install this", "installation steps?", "Fresh Ubuntu box, cloned the repo. Now what?", "how to set up edgespec on linux",),
        may="/models --help",
    ),
    # right: Run install.ps1 in PowerShell, or install.sh in Git Bash.
    Asked(
        'install',
        (r"install\.ps1|install\.sh",),
        ("how do I install edgespec on windows", "powershell install?", "what's the installer for Windows called",),
        may="/models --help",
    ),
    # right: No, but without one the kernels for low-bit weights are several times slower.
    Asked(
        'install',
        (r"slow|faster", r"compiler|kernel|low-bit|int8|int4|without (one|it)|^\W*no\b|times",),
        ("do I need a C compiler", "what happens if there's no gcc on my machine when installing", "is it a problem that i dont have a compiler installed",),
        may="--precision /models --help",
    ),
    # right: No, install.sh installs torch by itself: a CPU build unless it finds an NVIDIA GPU.
    Asked(
        'install',
        (r"install(s|ed)?\b|automatic|itself|for you", r"torch|(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)",),
        ("do i need to install pytorch first", "Should I pip install torch before I run the installer?",),
        may="/models --help",
    ),
    # right: It is in the virtual environment: run .venv/bin/edgespec (.venv\Scripts on Windows).
    Asked(
        'install',
        (r"\.venv",),
        ("bash: edgespec: command not found", "i installed it but typing edgespec says not recognized as a command", "where did install.sh put the edgespec program",),
        may="/bin /path /models --help",
    ),
    # right: Delete the folder with its .venv; downloaded models lie in the Hugging Face cache.
    Asked(
        'install',
        (r"(delet|remov|\brm\b|throw|erase).*(folder|director|\.venv|checkout|repo|clone)|pip uninstall",),
        ("how do i uninstall it", "get rid of edgespec completely, how", "Remove the program from my laptop?",),
        may="/share /huggingface /edgespec /library /models --help",
    ),
    # right: With ./install.sh test && .venv/bin/pytest.  (rarely asked)
    Asked(
        'install',
        (r"pytest",),
        ("how do I run the test suite", "I'd like to run its tests before I trust it. Command?",),
        may="/models --help",
    ),
    # right: Run edgespec --version.
    Asked(
        'install',
        (r"--version",),
        ("how do i see which version of edgespec i have", "check version",),
        may="--help /models",
    ),
    # ---- memory
    # right: Start it with --memory, such as edgespec chat MODEL --memory 8GB.
    Asked(
        'memory',
        (r"--memory|edgespec_memory",),
        ("edgespec eats all my ram, how do i stop that", "Can I give it just 4 gigs?", "put a ceiling on memmory use", "I want to keep 8 GB free for my browser. What do I pass to edgespec so it stays below that?", "ram budget option name", "My laptop has 16GB and I'd only like to spend half of it on this, how?", "how do i set a ram limit for the chat",),
        may="--device-memory --context /models --help",
    ),
    # right: By default it may use what the machine has free.
    Asked(
        'memory',
        (r"free|available|unused|spare",),
        ("what is the default memory limit", "if i don't give a memory limit how much will it take", "how much ram does it use when I leave --memory out?", "Default value of the memory dial?",),
        may="--memory --context /models --help",
    ),
    # right: 8GB is 8e9 bytes, 8GiB is 2^33 bytes.
    Asked(
        'memory',
        (r"2\^3[03]|2\*\*3[03]|1024|binary|power of (two|2)|8[.,]?58|1[.,]07|8e9|10\^9|1000|larger|bigger|\bmore",),
        ("is 8GB the same as 8GiB", "GB or GiB, what's the difference here", "How many bytes is 8GiB for edgespec?",),
        may="--memory /models --help",
    ),
    # right: Write a number with a unit, such as 8GB, 8G, 512MB or 8GiB.
    Asked(
        'memory',
        (r"\bmb\b|\d ?(mb|gib|g)\b|unit|such as \d|like \d|gigabyte|megabyte",),
        ("which units can i use for the memory size", "how do you write half a gigabyte in --memory", "is the limit in megabytes or gigabytes or what", "format of SIZE?",),
        may="--memory --device-memory /models --help",
    ),
    # right: Not during a chat: leave it and start again with edgespec chat --memory 4GB -c.
    Asked(
        'memory',
        (r"(start|run|open|call).*(again|anew|--memory|chat)|--memory|restart|for the start|beginning", r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|start|restart|leave|exit",),
        ("can i change the memory limit while the chat is running", "/set memory 4GB gives me an error", "I want to raise the memory in the middle of a conversation, possible?",),
        may="/set /exit --memory --continue /models --help",
    ),
    # right: The memory you gave is too small: the message names the smallest size that works, so give --memory at least that, or a smaller --context.
    Asked(
        'memory',
        (r"more memory|larger|bigger|raise|increase|at least|smallest|higher|more ram|minimum|give .*more", r"memory|dial|ram\b",),
        ("it says the budget is too small", "BudgetError what now", "error: the memory dial is too small for this model. what do i do?", "edgespec refuses to start because of not enough memory",),
        may="--memory --context --precision --resident-layers --drafter /models --help",
    ),
    # right: It depends on the model: with too little, the error names the smallest size that works.
    Asked(
        'memory',
        (r"smallest|depends|(error|message).*(names|says|tells)|no fixed",),
        ("whats the least ram i need", "Minimum memory for a model? How do I find out?", "how low can i go with --memory",),
        may="--memory --context --precision /models --help",
    ),
    # right: Yes, on Linux the page cache is included.  (rarely asked)
    Asked(
        'memory',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|page cache|cache.*(count|includ)|includ|count",),
        ("does the limit include the page cache", "Is the OS file cache counted against the dial on linux?",),
        may="--memory /models --help",
    ),
    # right: On Linux it is a hard cap, page cache included; on macOS and Windows the plan is the same but less strict.
    Asked(
        'memory',
        (r"\bhard|never|\bcap\b|not (exceed|go over)|stays? below",),
        ("is the memory limit a hard limit or just a hint", "will it ever go over the memory i allowed", "Does it really never exceed what I set? I'm on Debian.",),
        may="--memory /models --help",
    ),
    # right: Type /show plan in the chat.
    Asked(
        'memory',
        (r"/show plan|plan\.describe",),
        ("where does all the memory go? can i see a breakdown", "how to show the memory plan", "which command lists who owns every byte", "i want to see how many layers fit in memory and how many don't",),
        may="--verbose /show /stats /models --help",
    ),
    # right: --device-memory sets the most memory on the accelerator.
    Asked(
        'memory',
        (r"--device-memory",),
        ("how do i limit vram", "option for gpu memory?",),
        may="--memory --device /models --help",
    ),
    # right: Yes, the KV cache is part of the plan and counts against the dial.  (rarely asked)
    Asked(
        'memory',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|\bkv\b|cache.*(count|includ|plan)|plan|includ|count",),
        ("is the kv cache counted in --memory too",),
        may="--memory --context /models --help",
    ),
    # right: The dial is the memory limit that you set with --memory.
    Asked(
        'memory',
        (r"memory|--memory|ram\b", r"limit|most|max|may use|set|--memory|budget|cap|allow",),
        ("what do they mean by dial", "\"memory dial\"??",),
        may="--memory --context /models --help",
    ),
    # right: Yes: what does not fit the memory is streamed from the disk in every pass.
    Asked(
        'memory',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*yes\b.{0,18}$|stream|(read|from).*(disk|flash|ssd)|(larger|bigger|more) than|not fit",),
        ("can i run a model thats bigger than my ram", "my model file is 30 GB and i have 16 GB of memory. does that work at all?", "Is it really possible to use a model larger than RAM?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: No, what does not fit is streamed from the disk.
    Asked(
        'memory',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|stream|disk|flash|ssd|fit|larger|bigger",),
        ("do models have to fit into ram", "must the whole model be in memory at once?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: The layers that do not fit are streamed from the disk in every pass.
    Asked(
        'memory',
        (r"stream|read.*(disk|flash|ssd|drive)", r"^(?!.*nothing)",),
        ("what happens with the layers that don't fit in memory", "how can it run a model larger than memory, whats the trick", "Where are the weights if they're not in RAM?",),
        may="--memory --context /models --help",
    ),
    # right: Use --context, such as --context 4096.
    Asked(
        'memory',
        (r"--context",),
        ("how do i set the context length", "which flag makes the context window bigger", "n_ctx equivalent?", "context size option",),
        may="--memory --max-tokens /models --help",
    ),
    # right: By the memory plan; it is said at the start.  (rarely asked)
    Asked(
        'memory',
        (r"plan|(fits?|room|free).*memory|memory.*(allow|decid|room)",),
        ("how large is the context by default", "what decides the context length if i dont set it",),
        may="--memory --context /show /models --help",
    ),
    # right: With --resident-layers N it keeps exactly the first N layers in memory.  (rarely asked)
    Asked(
        'memory',
        (r"--resident-layers",),
        ("can I choose myself how many layers stay in RAM", "keep exactly 10 layers in memory, flag?", "equivalent of ngl / number of resident layers?",),
        may="--memory --device --device-memory /models --help",
    ),
    # ---- big
    # right: Yes, a 70B runs with 4GB: nearly all of it streams from the disk, so it is slow, but it is still the exact model.
    Asked(
        'big',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*yes\b.{0,18}$|70b|nearly all|slow|^\W*yes\b.*(stream|disk|flash|runs?\b|works?)|it (does|runs|will|can|works)",),
        ("can i run a 70b with 4gb", "Llama 70B on an 8 GB laptop, yes or no?", "does a seventy billion parameter model work on 8 gigs of ram", "is 70B on 4GB for real??", "I've got 8GB total. Could I technically start a 70B?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: Slow: nearly all of its 137 GB are read from the disk in every pass, so a token takes about a minute or more.
    Asked(
        'big',
        (r"slow|minutes?\b|(\d|many|several|some|tens of|dozens of) seconds|seconds (a|per|for)|(below|less than|under) (one|1|a) token|0\.0\d|(disk|flash|ssd)'?s? (full )?(rate|speed)|hours?|(137|140) ?gb.*(pass|token)|depends on .*(disk|flash|ssd)", r"^(?!.*\b(very|quite|really) fast)",),
        ("how fast is a 70b on 4gb", "what speed can I expect from a 70B model on 8GB RAM", "tokens per second for llama 70b with little memory?", "Would a 70B be usable for live chatting on a small machine?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats /show --help",
    ),
    # right: A 70B in bf16 takes 137 GB of disk.
    Asked(
        'big',
        (r"137|140",),
        ("how much disk space does a 70b need", "size of a 70B on disk in bf16?", "whats the download size for 70b roughly",),
        may="--precision /models --help",
    ),
    # right: A 7B in bf16 takes 13.5 GB.
    Asked(
        'big',
        (r"13\.5|\b1[34] ?gb",),
        ("how big is a 7b model in bf16", "how many GB is a 7B on the disk unquantized",),
        may="--precision /models --help",
    ),
    # right: Yes: about half of a 7B is pinned with 8GB, the rest streams in every pass.
    Asked(
        'big',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*yes\b.{0,18}$|\b7b|about half|^\W*yes\b.*(stream|disk|flash|pin|runs?\b|works?|fit)|it (does|runs|will|can|works)",),
        ("can i run a 7b on 8gb ram", "would llama 2 7b work on my 8gb notebook", "mistral 7b, 8 gigs. ok?",),
        may="--memory --substitute --draft-model --adapters --drafter --precision --context --device --max-tokens --threads /models /set /stats --help",
    ),
    # right: Everything is pinned in memory, and nothing is read from the disk.
    Asked(
        'big',
        (r"pinned|nothing is (read|stream)|(stay|kept|keep|all|everything|whole).*(memory|ram)|no (read|stream)|(does|is) not (read|stream)", r"^(?!.*half)",),
        ("what happens when the whole model fits in memory", "7B with --memory 24GB, does it still read the disk?",),
        may="--memory --context /models --help",
    ),
)  # fmt: skip
