"""Topics of the command line, continued: replies, models and the chat's own flags."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_topics import Topic

REPLIES = "[replies|answers|reply|answer|output|text]"
CHAT = "[chat|conversation|talk|session]"

TOPICS: tuple[Topic, ...] = (
    # Replies
    Topic(
        "--temperature", "--temperature sets how random replies are. At 0, the likeliest token is taken.",
        ("--temperature", "the [flag|option] --temperature", "[the|a] temperature", "temperature 0"),
        ("[set|change|choose|raise|lower|increase|adjust] the [temperature|randomness|creativity]", "[get|have|make|write] [more|less] [random|creative|varied|surprising|diverse|different|interesting|lively] {r}".replace("{r}", REPLIES), "[get|have] [more|less] [variety|randomness|creativity|variation|diversity] [in the replies|in the answers|]", "[make|let] [the replies|the answers|it|you|the model|replies] [be|] [more|less] [random|creative|varied|diverse|surprising]", "[turn on|use|switch on|enable] sampling"),
        ("[which|what] [flag|option] [sets|controls|changes] [the temperature|randomness|creativity|how random replies are]?", "why [do I|do I always] get the same [reply|answer|text] [every time|again and again|each time|]?", "why [are all|are] [the replies|the answers|your answers|your replies] [the same|equal|never different|always identical]?", "[you|it] always [say|says|answer|answers] the same", "how random [are the replies|is it|are you]?", "creativity?", "sampling?"),
    ),
    Topic(
        "--top-p", "--top-p, --top-k and --min-p limit sampling to the likeliest tokens.",
        ("--top-p", "--top-k", "--min-p", "the [flag|option] [--top-p|--top-k|--min-p]", "[top-p|top-k|min-p|nucleus sampling|top p|top k]"),
        ("[set|change|use|choose|limit with] [top-p|top-k|min-p|--top-k|--top-p|nucleus sampling|top p|min-p sampling|top-p sampling]", "[limit|restrict] [sampling|the sampling|the choice of tokens] [to the likeliest tokens|to likely tokens|]", "[sample|choose] only from [the likeliest|likely|the best] tokens", "avoid unlikely tokens", "[use|do|apply|turn on] [top-k|top-p|min-p] sampling"),
        ("[which|what] [flags|options] limit sampling?", "difference between top-p and top-k?", "top-k?", "is there [top-p|top-k|min-p|nucleus sampling]?", "[top-k|top-p|min-p] sampling, how?", "[can|may] I use [top-k|top-p|min-p]?"),
    ),
    Topic(
        "--seed", "--seed makes sampling repeatable: the same seed gives the same reply.",
        ("--seed", "the [flag|option] --seed", "[the|a] seed"),
        ("[set|change|choose|fix|give] [the|a|another] seed", "[make|keep|get] [sampling|sampled replies|random replies|the randomness|replies|results] [repeatable|the same|reproducible|deterministic]", "[repeat|reproduce|get again] [a|the same] [random|sampled|] [reply|answer|result] [later|exactly|]", "get [the same|equal] [answers|replies|text] [every time|each time|always] [when sampling|while sampling|although it samples]"),
        ("is sampling [repeatable|deterministic|reproducible]?", "[which|what] [flag|option] makes [sampling|replies|results] [repeatable|reproducible]?", "can I [repeat|reproduce] a [random|sampled] reply?", "same seed, same reply?", "[the same|an identical] [random|sampled] [reply|answer|text] [each time|twice|again]?", "random seed?", "[the same|equal] [reply|text] [every time|each time|always] [when sampling|although it samples]?"),
    ),
    Topic(
        "--max-tokens", "--max-tokens limits the length of a reply, for example --max-tokens 100.",
        ("--max-tokens", "the [flag|option] --max-tokens"),
        ("[limit|set|bound|restrict|cap|reduce|control|cut|change] [the|how long|the maximum|the greatest] [length of replies|length of a reply|length of the answers|number of tokens|reply length|length|answer length|replies are|number of tokens in a reply]", "[get|have|make|ask for|want] [shorter|short|brief|briefer|less long] {r}".replace("{r}", REPLIES), "[shorten|limit|cut] the {r}".replace("{r}", REPLIES), "limit [a|the|each|every] [reply|answer] to [10|20|30|100|200|some|so many] [tokens|words]", "get [longer|long] replies", "stop [it|the model] from writing so much"),
        ("[which|what] [flag|option] [limits|sets|bounds] [the length|the number of tokens|how long a reply is|reply length]?", "[the|your] [replies|answers] are [very|much too|so|far too] long", "how long [can|may|will] a reply [be|get|become]?", "[maximum|max|longest] [length|reply length|reply]?", "max tokens", "[shorter|brief|short] [answers|replies|texts] [please|]", "you write too much", "at most [10|20|100|200] tokens [please|]", "[the|your] [answers|replies] are [too long|too wordy|endless], [how do I shorten|can I limit|can I cut] them?", "can [replies|answers] be [shorter|limited|shortened|cut]?", "only [50|20|80|150] tokens [please|a reply|]"),
    ),
    Topic(
        "--stop", "--stop TEXT ends the reply before this text.",
        ("--stop", "the [flag|option] --stop", "[a|the] stop [text|word|sequence|string]"),
        ("[stop|end|cut] [a|the|every] [reply|answer|text] [at|before] [a certain text|a word|a certain word|some text|a string|a line break|the word END|a given text]", "[set|give|use|define] [a|the] stop [text|word|sequence|string]"),
        ("[are there|is there|can I have] [stop words|stop sequences|a stop word|stop texts]?", "[which|what] [flag|option] [ends a reply at a text|sets a stop word|gives a stop text]?", "stop sequence?"),
    ),
    Topic(
        "--context", "--context sets how many tokens prompt and reply may take together.",
        ("--context", "the [flag|option] --context", "[the|a] context", "the context [length|window|size]"),
        ("[set|change|raise|increase|enlarge|extend|lower|choose|reduce|limit] the [context|context length|context size|context window|number of positions|length of the context]", "[get|have|use] a [longer|larger|bigger|smaller|shorter] context", "[read|use|give it] [longer prompts|more text|a longer prompt|long texts]", "[make|let] [it|you|the model] remember [more|longer|more text]"),
        ("how long is the context?", "[which|what] [flag|option] [sets|changes|is for] the [context|context length|context window|context size]?", "how [many|much] [tokens|text] [fit|can you remember|does it remember|can it read|fits]?", "the context is [too short|too small]", "context length?", "maximum context?"),
    ),
    # The model
    Topic(
        "--precision", "--precision is source, bf16, int8 or int4. Fewer bits take less memory.",
        ("--precision", "the [flag|option] --precision", "[the|a] precision", "int8", "int4", "bf16"),
        ("[set|change|choose|pick|select|lower] the [precision|number of bits]", "[use|run|load|have] [a|my|the] model [in|at|with] [int8|int4|8 bits|4-bit|8-bit|bf16|low precision|lower precision|fewer bits]", "[run|compute] [in|with] [int8|int4|8 bits|8-bit|fewer bits|lower precision|bf16]", "use [int4|int8|bf16]", "[run|use|load|start] [a|my|the] model [in|with|at] [4|8|16|four|eight|fewer] bits"),
        ("[which|what] [precisions|number formats|bit widths] [does it have|does EdgeSpec know|can I use|can I choose|exist|are supported]?", "[which|what] [flag|option] sets the precision?", "[does|can] [it|EdgeSpec] [do|know|run|support] [int8|int4|8 bits|4-bit|bf16|4 bits|8-bit]?", "how many bits [does it use|are there|can I choose]?", "is int4 possible?", "bits?", "[4|8|16|four|eight] bits?", "a model in [4|8|four|eight] bits?"),
    ),
    Topic(
        "--resident-layers", "--resident-layers N keeps exactly the first N layers in memory.",
        ("--resident-layers", "the [flag|option] --resident-layers"),
        ("[choose|set|decide|say|fix|change|determine] [how many|which|the number of] layers [are kept|are pinned|stay in RAM|remain in memory|are resident|to keep in memory]", "[keep|pin|hold] [some|exactly ten|a number of|the first|a fixed number of|so many] layers [in memory|in RAM|]", "[decide|choose|set|say] how many layers [remain|are held|are kept|stay resident] in [memory|RAM]"),
        ("[which|what] [flag|option] [keeps layers in memory|pins layers|sets the number of pinned layers]?", "[can|could] I [choose|decide|set] how many layers are [pinned|kept|resident]?", "number of resident layers?", "how many layers stay in [RAM|memory], can I [choose|set] that?"),
    ),
    Topic(
        "--device", "EdgeSpec runs on the CPU. --device cuda is written, but not yet tested on a GPU.",
        ("--device", "the [flag|option] --device"),
        ("[use|run on|compute on|try|work with] [a|the|my|an Nvidia] [GPU|graphics card|graphics processor|video card]", "[choose|set|select|change] the [device|processor]", "[run|use] [it|EdgeSpec|a model] [on|with] [CUDA|the GPU|the CPU|a GPU|a graphics card]", "use CUDA"),
        ("[does|can|will] [it|EdgeSpec] [use|run on|work with|support] [a|my|the|any] [GPU|graphics card|Nvidia GPU|CUDA|RTX 3060|RTX 4090|GeForce|NVIDIA card]?", "[is there|do you have] [support for|] [CUDA|GPU support|GPUs]?", "is [CUDA|a GPU|the GPU] [supported|used]?", "CPU or GPU?", "[which|what] devices [does it run on|are supported|can I use]?", "GPU?"),
    ),
    Topic(
        "--offline", "--offline uses only files that are already here and downloads nothing.",
        ("--offline", "the [flag|option] --offline"),
        ("[run|work|use it|start|be|stay|use EdgeSpec] [offline|without the internet|without internet|without a network|without downloads|without a connection]", "[stop|prevent|avoid|block|turn off|disable|forbid] [it from downloading|downloads|all downloads|downloading|the network|network access|internet access|going online]", "[make sure|ensure] [that|] [nothing is downloaded|it stays offline|it does not download|it does not use the internet]", "[ban|refuse|block|rule out] [downloads|the internet|the network]", "keep it [off the internet|offline|from the network]"),
        ("[does|can] [EdgeSpec|it] [work|run] [offline|without the internet|without internet|without a network]?", "[which|what] [flag|option] [forbids|stops|prevents] downloads?", "no [downloads|internet|network] [please|]", "is it offline?", "can I use it on a plane?", "never download [anything|]", "it [must|should] not [download|go to the internet|use the network]"),
    ),
    # The chat's own flags
    Topic(
        "--continue", "--continue, or -c, goes on with the last conversation.",
        ("--continue", "the [flag|option] --continue", "-c", "the flag -c", "edgespec chat --continue", "the -c [flag|option]", "edgespec chat -c"),
        ("[continue|resume|go on with|return to|come back to|reopen|take up|carry on with] [the|my|our] [last|previous|latest|most recent|yesterday's|earlier] {c} [again|after leaving|the next day|after a restart|]".replace("{c}", CHAT), "[go on|continue|carry on|start] where [I|we] [stopped|left off|ended|were|left] [last time|before|yesterday|]", "[continue|resume|carry on] [after leaving|after a restart|later|tomorrow|the next day]", "[go on|continue|carry on] from [yesterday|last time|the last session]"),
        ("[can|could] I [continue|resume|go on with|carry on with|return to] [the|my|our] [last|latest|previous|earlier|most recent] {c}?".replace("{c}", CHAT), "[which|what] [flag|option] [continues|resumes] [the|my] last {c}?".replace("{c}", CHAT), "is [the|my|our] last {c} [lost|kept|gone|remembered] [when I leave|after leaving|]?".replace("{c}", CHAT), "I closed the {c}, how do I [go on|continue|get it back|resume]?".replace("{c}", CHAT), "back to the last {c}".replace("{c}", CHAT), "last {c} again?".replace("{c}", CHAT), "[resume|continue|reopen] [my|the] [latest|previous|earlier] [chat|talk|conversation|session]", "[continue|resume] [please|the last one|]", "can I [go on|continue] [tomorrow|later|where I stopped]?", "what does chat -c do?"),
    ),
    Topic(
        "--system-file", "--system-file FILE reads the system prompt from a file.",
        ("--system-file", "the [flag|option] --system-file"),
        ("[read|take|load|get|use|give|put] [the|a|my] system [prompt|message] [from|in] a [text|] file", "[use|have|give|write] a [very|] long system [prompt|message]", "[keep|store] [my|the] system prompt in a file"),
        ("[which|what] [flag|option] reads the system prompt [from a file|]?", "can [I|it] read the system prompt from [a file|disk]?", "[my|the] system prompt is [in a file|long|too long to type]", "system prompt [from a|in a] file?"),
    ),
    Topic(
        "--verbose", "--verbose, or -v, shows the predicted and the measured memory after each reply.",
        ("--verbose", "the [flag|option] --verbose", "-v", "the flag -v", "verbose mode", "chat -v", "the -v [flag|option]"),
        ("[see|show|print|compare|get] [the|] [predicted and measured memory|predicted memory|measured memory|prediction and measurement|memory after each reply|prediction of memory] [after each reply|after every reply|]", "[get|see|print|show] more [details|information|output] [after each reply|]", "[see|check|watch] [whether|if] the memory prediction [was right|is right|holds]"),
        ("[which|what] [flag|option] [shows|prints] [more details|the predicted memory|predicted and measured memory|more]?", "how much memory was [predicted|planned|used|measured]?", "more details [please|]", "is there a verbose mode?", "verbose?", "does -v [show|print] more?", "predicted memory?"),
    ),
    Topic(
        "--show-drafts", "--show-drafts shows which tokens were drafted.",
        ("--show-drafts", "the [flag|option] --show-drafts"),
        ("[see|show|mark|colour|highlight|display|view|find out|know] [the|which|all|what] [drafted tokens|drafts|tokens were drafted|words were drafted|tokens came from the drafter|accepted drafts|tokens were guessed|words are drafts]", "[see|watch|show] the [drafter|drafting|cascade] at work"),
        ("[which|what] [tokens|words|parts] [were|are|have been] drafted?", "[which|what] [flag|option] [shows|marks|colours] [the|] [drafts|drafted tokens]?", "can I see the [drafts|drafted tokens|drafted words]?", "show [me|] the drafts", "[drafted words|drafts] in colour?", "where do I see drafts?"),
    ),
    Topic(
        "--json", "--json prints the result as JSON.",
        ("--json", "the [flag|option] --json"),
        ("[get|print|have|see|write|produce] [JSON|the result as JSON|results in JSON|JSON output|output as JSON|the results as JSON|output for a script|output for a program|machine readable output]", "[read|parse|use] the [result|results|output] [in|with|from] [a script|a program|another program]"),
        ("[can|could] I [get|have] [JSON|output as JSON|JSON output]?", "is there JSON output?", "[which|what] [flag|option] prints JSON?", "JSON?", "output for scripts?"),
    ),
    Topic(
        "one message", 'edgespec chat MODEL -p "text" answers one message and leaves.',
        ("-p", "the [flag|option] -p", "edgespec chat -p"),
        ("[ask|send|put] [one|a single|only one|a] [question|message] [from the shell|on the command line|and leave|without a chat|in a script|from a script|and no more|]", "[get|have] [one|a single|just one] [answer|reply] [from the shell|on the command line|and leave|in a script|from a script|]", "[use|run] chat [in a script|from a script|for one message|without a terminal|for a single question]", "get [one|just one|a single] answer without [a chat|chatting|the chat|a conversation]"),
        ("[can|could] I ask [one|a single] question [from the shell|on the command line|in a script|]?", "[which|what] [flag|option] [answers|sends|asks] one [message|question]?", "one question [only|from the shell]?", "chat without a terminal?", "is there a way to ask without starting the chat?", "an answer without [a chat|the chat|an interactive session]?", "ask once and leave"),
    ),
    Topic(
        "pipe", 'cat FILE | edgespec chat MODEL -p "Sum up." asks about a file.',
        ("a pipe", "piping"),
        ("[sum up|summarise|summarize|ask about|send|use|give it|pass|feed it|read] [a|the|my] [file|text file|document|long text|log file|text in a file|file's text]", "[use|have|send it] [a pipe|text from a pipe|standard input|stdin|text through a pipe]", "[pipe|feed|pass|send] [text|a file|a document|a long text|something] [to|into|to the|] [it|chat|edgespec|EdgeSpec|a model|the model]", "ask about [what is in|the text of|the words in] a [text|] file", "let [it|the model|you] [summarise|sum up|read] [a file|my file|a document|a text]"),
        ("[can|could|does] [it|you|EdgeSpec|a model] [read|summarise|sum up|take|summarize] [a file|files|standard input|a document|stdin|a text file]?", "can I [give|send|pass] it a file?", "does [chat|it] read [standard input|stdin|pipes]?", "stdin?", "a question about a file?", "[sum up|summarise] [a|my|this] [file|document|text file]", "a file as input?", "what about the contents of a file?"),
    ),
    Topic(
        "history", "Typed lines are kept in a file that only you can read. --no-history keeps none.",
        ("--no-history", "the [flag|option] --no-history", "the [history|input history|history file]"),
        ("[turn off|switch off|disable|stop|avoid|prevent] [the history|history|remembering what I type|the history file|keeping typed lines|saving what I type]", "[keep|have] no history [of what I type|]"),
        ("[are|is] [typed lines|my lines|my input|what I typed|what I write] [kept|stored|saved|remembered|recorded] [anywhere|in a file|on disk|]?", "who can read [what I typed|my history|the history]?", "is there a history [of what I typed|]?", "no history [please|]", "does the chat keep [my lines|what I typed]?"),
    ),
    Topic(
        "environment", "Options also go into the environment, as EDGESPEC_MEMORY=8GB, or into edgespec.toml.",
        ("edgespec.toml", "EDGESPEC_MEMORY", "the [config file|configuration file|settings file]", "[an|the] environment [variable|variables]"),
        ("[set|give|put|keep|store|write] [the|my|an|] [options|option|flags|settings|defaults|memory limit] [in the environment|in a file|for good|permanently|once and for all|in a configuration file|with environment variables|in a settings file|for every run]", "[use|have|write] [a|the|my own] [config file|configuration file|settings file|configuration|toml file]", "[avoid|not] [typing|writing|repeating] [--memory|the flags|the same options] [every time|each time|again and again]", "[make|keep] [--memory|an option|a flag|my options|--memory 4GB|the limit] [permanent|the default|always on|for every run]"),
        ("[is there|do you have] a [config file|configuration file|settings file|configuration]?", "[which|what] environment [variable|variables] [does it read|does EdgeSpec read|set the memory|can I use|exist]?", "where do I put [my|the] [settings|defaults|options] [for good|permanently|]?", "can [flags|options|the flags|the memory limit] be [permanent|set once|kept|stored in a file]?", "permanent settings?", "config?", "how do I make [an option|a flag|--memory|options] permanent?", "an option for every run?", "options in a file?"),
    ),
    Topic(
        "version", "edgespec --version shows the version.",
        ("--version", "edgespec --version"),
        ("[see|show|find|find out|know|get|print|check] [the|my|which|what] [version|version of EdgeSpec|version I have|version is installed|release]",),
        ("[which|what] version [is this|of EdgeSpec is this|is installed|am I using|are you|is it]?", "version [please|]", "what release is this?"),
    ),
    Topic(
        "Python", 'In Python: import edgespec, then edgespec.load("model", memory="8GB").',
        ("the Python [API|interface|library]", "edgespec.load", "import edgespec"),
        ("[use|call|run|import|load] [it|EdgeSpec|a model|edgespec] [in|from|with|inside] [Python|a Python program|my Python program|a Python script|my own code|my code|my app|a notebook|my own program|my script]", "write a Python program with EdgeSpec", "call [it|EdgeSpec] from [my|another|a] [own|] [program|script|app]", "build [it|EdgeSpec] into my [app|program]"),
        ("[does|has] [EdgeSpec|it] [have|] [a|an] [Python API|API|Python interface|library|Python library]?", "[is there|do you have] [an|a] [API|Python interface|Python library|library]?", "[can|could] I [use|call|import] [it|EdgeSpec] [in|from] [Python|my program|my code|a script]?", "API?", "in Python?", "as a library?", "[call|use] EdgeSpec from [code|Python|a script]"),
    ),
)  # fmt: skip
