"""Topics of the command line: the commands and their flags."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_topics import Topic

MEM = "[memory|RAM|the memory|ram]"

TOPICS: tuple[Topic, ...] = (
    # The memory limit
    Topic(
        "memory", "--memory sets the most memory EdgeSpec may use, for example --memory 8GB.",
        ("--memory", "the [flag|option] --memory", "the memory [dial|limit|option|flag]", "the dial"),
        ("[set|change|choose|give|lower|raise|specify|adjust|control|define|fix] [the|a|my|its] [memory limit|limit of memory|memory dial|dial|RAM limit|memory cap|maximum memory|memory budget|limit for memory]", "[limit|restrict|bound|cap|reduce|control|set] [its|the|how much] [memory|RAM|memory use|memory usage|memory consumption|RAM usage|memory it uses|RAM it takes]", "[make|let] [it|EdgeSpec|the model|the program] [use|take|need|have|eat] [less|little|only a little|not so much|only some|fewer gigabytes of] {m}".replace("{m}", MEM), "[say|tell it|decide|determine|tell the program] how [much|many gigabytes of] {m} [it|EdgeSpec|the program|the model] [may|can|should] [use|take|have]".replace("{m}", MEM), "[use|take|need|spend] less {m}".replace("{m}", MEM), "keep [the memory|memory use|RAM use|it] [small|low|bounded]", "give it [more|less] {m}".replace("{m}", MEM), "[lower|reduce|shrink|cut] [its|the] [footprint|memory footprint|RAM footprint|appetite for memory]", "[say|set|name|give] [the|a] maximum [of memory|memory|amount of RAM|amount of memory]", "keep it from [using|eating|filling|taking] all [my|the] [memory|RAM|the memory|ram]"),
        ("[which|what] [flag|option|switch|parameter|setting] [sets|limits|controls|bounds|changes|is for] [the memory|memory|RAM|memory use|the RAM|memory usage]?", "[can|could] I [limit|bound|restrict|cap|set|choose] [the memory|the RAM|memory|its memory use|memory usage]?", "[it|EdgeSpec|this] [uses|takes|eats|needs] too much {m}".replace("{m}", MEM), "where [is|do I find] the [memory limit|memory setting|memory option|RAM limit]?", "[limit|limits] of memory?", "[maximum|max] memory?", "is there a [memory limit|limit to the memory|maximum for memory|memory option|flag for memory]?", "RAM limit?", "it [eats|uses|fills|takes] all my [RAM|memory]", "where can I [set|choose|limit|adjust|restrict] [the memory|how much memory it uses|the RAM|memory use]?", "memory", "RAM?", "set memory limit", "[how|where] is the memory [limited|set|bounded|chosen]?", "how do I [limit|set|bound|cap|choose] the [memory|RAM|memory limit|RAM limit] [of EdgeSpec|with EdgeSpec|]?"),
    ),
    Topic(
        "default memory", "Without --memory, EdgeSpec may use what the machine has free.",
        ("the default [memory limit|memory|--memory|dial]",),
        ("[run|start] [it|EdgeSpec|a model|the chat] without [--memory|a memory limit|the flag --memory]",),
        ("what [if|happens if|happens when|happens] I [leave out|do not give|omit|forget|do not set|skip] [--memory|the memory limit|the flag --memory|a limit]?", "what is the [default|standard|usual|normal] [memory|of --memory|limit|dial|memory dial|value of --memory]?", "how much {m} [does it use|may it use|will it use|is used] [without a limit|without --memory|if I set nothing|normally|when I say nothing|as a rule|when no limit is set]?".replace("{m}", MEM), "[do I have to|must I] [set|give] --memory?", "is --memory [needed|required|necessary|optional]?", "default of --memory?", "no memory limit, what then?", "what if there is no [--memory|limit]?", "how much [memory|RAM|the memory|ram] does it [take|use] when I [do not give a limit|give no --memory|leave the limit out]?"),
    ),
    Topic(
        "memory while chatting", "The memory limit is fixed at the start. Leave and start again with another --memory.",
        (),
        ("[change|set|lower|raise|increase|reduce] [the memory limit|the memory|--memory|the dial|the limit|the RAM] [in the chat|while chatting|during the chat|while it runs|in a running chat|here in the chat|with /set|now that it runs|later|without a restart|in the middle of a conversation]", "give it [more|less] memory [while it runs|in the chat|now|during the chat|while chatting]"),
        ("can [--memory|the memory limit|the dial|the memory] be [changed|set|raised|lowered] [in the chat|while it runs|later|with /set|during a chat|while chatting|at run time]?", "/set memory", "can I [use|write|type] /set [memory|--memory]?", "is the memory limit fixed?", "[more|less] memory [now|in this chat]?"),
    ),
    Topic(
        "how much memory", "As much memory as you can spare: the more it has, the less it reads. It runs with little, too.",
        ("the [right|recommended|best] [memory limit|amount of memory|--memory]",),
        ("[choose|find|pick|know|decide on] [the right|a good|the best] [memory limit|amount of memory|value for --memory|value of the dial|size for --memory]",),
        ("how much {m} [do I need|is needed|does it need|is enough|should I use|is best|is right|is good|shall I give|should it get|does a model need|must I have]?".replace("{m}", MEM), "how many [gigabytes|GB] [do I need|should I give it|are enough|does it need|are best]?", "[which|what] [memory limit|value of --memory|dial|amount of memory] [is best|is good|should I choose|should I take|do you recommend|should I set|is right]?", "is [4|8|2|16|1] GB enough?", "is more memory [better|faster]?", "does more memory [help|make it faster]?", "how little memory [is enough|is possible|can it run with]?", "recommended memory?", "minimum memory?", "[which|what] amount of [memory|RAM] [is good|is right|do you advise|should I set|is needed]?", "how much [memory|RAM|the memory|ram] [is sensible|would you give it|is reasonable|makes sense|ought it to have]?", "how much should I give it?"),
    ),
    # Commands
    Topic(
        "chat", "edgespec chat MODEL talks with a model. Without MODEL it starts this demo.",
        ("edgespec chat", "the [chat|edgespec chat] command", "the command [chat|edgespec chat]"),
        ("[chat|talk|speak|converse] [with|to] a model [on the command line|in the terminal|from the shell|]", "[start|open|launch|begin] [a|the] [chat|conversation|talk|demo] [in the shell|on the command line|in the terminal|with a model|]", "[begin|start] [chatting|talking|to chat|to talk] [to a model|with a model|]", "have a conversation with a model", "start [this demo|the demo|the demo model|you]"),
        ("[which|what] command [starts a chat|talks with a model|is for talking|starts the demo|starts a conversation]?", "what [does|happens with] edgespec chat without a model?", "what do I type to [chat|talk]?", "how [can|does one|would I] [begin|start] [a chat|chatting|a conversation]?", "[begin|start|open] a chat"),
    ),
    Topic(
        "real model", "Run edgespec chat MODEL, where MODEL is a Hugging Face id, a directory or a GGUF file.",
        (),
        ("[use|run|load|try|start|have|choose|get] [another|a real|a larger|a better|a bigger|a different|my own|a proper|a full|some other|a smarter|a good|a serious|a large] [model|language model|LLM]", "[use|run|load|try|start|chat with|talk to] [Llama|Mistral|Qwen|Qwen3|Vicuna|Llama 3|a Llama|a 7B model|a 70B model|a GGUF model|Mistral 7B|a model of my own|my model]", "[replace|swap|exchange] [the demo|you|this model|the demo model] [with|by|for] [a real|another|a larger|a better] [model|one]", "[change|switch] [the model|to another model|models|to a real model|to a larger model]", "get [better|smarter|cleverer|real] [answers|replies]", "[use|run|take|load] [a|another|some] [real|proper|larger] model [in place of|instead of] [the demo|this one|you]", "chat with [a larger|a real|another|a 7B|a better|my own] model", "talk to a [bigger|larger|better|real] model"),
        ("[which|what] command runs [a real model|my model|a large model|Llama|another model]?", "[can|could] I [use|run|try|have|choose] [another|a real|a bigger|a better|a larger|my own] model?", "[you|your answers] are [stupid|not clever|too simple|bad|weak], [is there a better model|how do I use another model|can I use a real model|how do I get a real model]?", "I [have|downloaded] a model, [how do I run it|how do I use it|what now]?", "run [Llama|Qwen|Mistral|my model]", "I want a [real|better|bigger|larger|smarter] model", "how do I choose the model?", "instead of [this|the] demo, I want a real model", "how do I get [a real|a larger|a cleverer|a good] model?"),
    ),
    Topic(
        "generate", 'edgespec generate MODEL -p "text" continues a text.',
        ("edgespec generate", "the [generate|edgespec generate] command", "the command [generate|edgespec generate]"),
        ("[continue|complete|extend|finish|go on with] [a|the|my|some] [text|prompt|sentence|story|paragraph] [with a model|on the command line|from the shell|with EdgeSpec|]", "[generate|produce|write|make] [text|some text|a text] [with a model|from a prompt|from the shell|on the command line|]", "[let|make|have] [a|the|my] model [complete|continue|write|finish|go on with] [a|the|some] [text|sentence|prompt|story]", "run [a prompt|one prompt]"),
        ("[which|what] command [continues|completes|generates] [a text|text|texts]?", "text completion?", "does generate use the chat format?", "complete a text", "when [is|do I need] [generate|edgespec generate] [useful|]?"),
    ),
    Topic(
        "pack", "edgespec pack MODEL -o DIR writes a model for streaming. With --precision int8 the copy is smaller.",
        ("edgespec pack", "the [pack|edgespec pack] command", "the command [pack|edgespec pack]", "packing", "a packed model"),
        ("[pack|convert|quantise|quantize|compress|shrink|repack] [a|my|the|this] model [to int8|to int4|to 8 bits|to 4 bits|for streaming|]", "[make|get|have|write|produce|create] [a|the] [smaller|compressed|packed|quantised|quantized|int8|int4|8-bit|4-bit|low-precision] [model|copy|version] [of my model|of a model|]", "[make|get] [a|the|my] model [smaller|less big|faster to read|small enough for my disk]", "[change|lower|reduce] the precision of [a|my|the] model [on disk|for good|]", "write a model in [another precision|int8|int4|the best layout]", "prepare a model for streaming"),
        ("[which|what] command [packs|converts|quantises|quantizes|shrinks|compresses] a model?", "[can|could] [a|my] model be [packed|made smaller|quantised|quantized|converted to int8|compressed]?", "why [would I|should I|do I] pack a model?", "quantisation?", "int8 copy?", "where does a packed model come from?"),
    ),
    Topic(
        "pack --verify", "edgespec pack --verify DIR checks every byte of a packed model.",
        ("pack --verify", "--verify", "the flag --verify", "edgespec pack --verify"),
        ("[check|verify|test|examine|validate] [a|my|the] [packed model|packed directory|packed copy|packed files|bytes of a packed model] [for errors|for damage|]", "[find out|know|see|make sure] [whether|if|that] [a|my|the] packed [model|copy|directory] is [damaged|broken|complete|whole|good|in order|not corrupt|correct|all right]"),
        ("is [the|a|this] packed [copy|model|directory] [broken|complete|in order|corrupt|correct|all right]?", "which command checks a packed model?", "[the|my] packed [model|files] may be [damaged|broken|corrupt]", "how are packed models checked?"),
    ),
    Topic(
        "pack --substitute", "edgespec pack MODEL -o DIR --substitute int4 adds a low-bit copy that drafts.",
        ("--substitute", "the flag --substitute", "the substitute [drafter|]", "[the|a] substitute", "a low-bit copy"),
        ("[make|write|add|get|create|pack|have|build] [a|the] [substitute|low-bit copy|low-bit drafter|int4 drafter|int4 copy for drafting|copy in 4 bits that drafts]", "[let|have|make] [a|the] [low-bit copy|4-bit copy|quantised copy] [draft|propose tokens|guess tokens]", "use [a|the] substitute [as drafter|to draft|]"),
        ("[which|what] command [makes|adds|writes] [a|the] [substitute|low-bit copy]?", "what does the substitute [do|draft]?", "where does the substitute come from?", "can a low-bit copy of the model draft?"),
    ),
    Topic(
        "bench", "edgespec bench MODEL measures how fast a model reads prompts and replies.",
        ("edgespec bench", "the [bench|edgespec bench] command", "the command [bench|edgespec bench]"),
        ("[measure|test|benchmark|find out|check|know|see|determine|compare] [the speed|how fast it is|the speed of a model|how fast my model is|how quick it runs|the rate|how fast a model runs|how fast my computer is|tokens per second|the performance|performance of my machine]", "[run|start|do|make] [a|the] [benchmark|speed test|performance test|measurement of speed]", "benchmark [a|my|the|this] [model|computer|disk|laptop]", "benchmark [this machine|it|my setup|my hardware|my PC]", "[find out|know|estimate|measure] how many tokens per second [I get|it makes|my model makes|my machine makes]"),
        ("[which|what] command [measures|tests] [the speed|speed|how fast it is|performance]?", "how fast [is|will|would] [it|a model|my model] [be|run|] [on my machine|on this computer|here]?", "is there a [benchmark|speed test]?", "[speed test|benchmark]", "measuring speed?", "what tokens per second [can|may] I expect?", "how many tokens per second [will it make|does my model make|can my machine do]?", "[test|measure] my [machine|computer|PC|laptop]", "[how|where] do I [find out|learn|measure|test] [how fast it will be|how many tokens per second it makes|how fast a model is]?", "what speed [will I get|can I expect|does my model have], how do I [measure|test] it?"),
    ),
    Topic(
        "train", "edgespec train cascade MODEL --data TEXT --out DIR trains adapters, so that MODEL drafts for itself.",
        ("edgespec train", "edgespec train cascade", "the [train|edgespec train] command", "the command [train|edgespec train]", "training"),
        ("train [a cascade|the cascade|adapters|a drafter|my own adapters|my own drafter|new adapters|a cascade for my model|something for my model|a model to draft for itself]", "[make|get|create|build|have] [adapters|a cascade|my own cascade|my own drafter|a trained drafter] [for my model|for another model|for a model of mine|]", "[let|make|teach] [a|my|the] model [draft for itself|draft by itself|to draft for itself]", "make a cascade for [another|my|a new|some other] model"),
        ("[which|what] command trains [adapters|a cascade|a drafter]?", "where do [adapters|the adapters] come from?", "can [adapters|a drafter|the cascade] be trained?", "who trains the cascade?", "training a drafter?", "[what|which data] do I need [to train|for training|to make] [a cascade|adapters|a drafter] [for another model|for my model|]?", "a cascade for [another|my own] model?"),
    ),
    Topic(
        "commands", "EdgeSpec has chat, generate, pack, bench and train. edgespec COMMAND --help lists the options.",
        ("--help", "edgespec --help", "the flag --help"),
        ("[see|list|find|get|show|print] [all|the] [edgespec commands|commands of EdgeSpec|subcommands|options|flags|options of a command|flags of chat|command line options|commands on the command line]", "get help [on the command line|with a command|for a command|in the shell]"),
        ("[which|what] [edgespec commands|commands of EdgeSpec|subcommands|commands on the command line|commands in the shell] [are there|exist|do I have|can I use|can I run]?", "[which|what] [commands|subcommands] does [EdgeSpec|edgespec|the program|the command line] have?", "[which|what] [options|flags] [are there|does a command have|does chat have|can I give|exist]?", "[list|name|show me|tell me] [the|all] [commands of EdgeSpec|edgespec commands|command line options|flags|options|subcommands]", "what else can [edgespec|the program|EdgeSpec|the command line] do?", "commands of EdgeSpec?", "where are the [flags|options] [listed|explained|described]?", "[which|what] subcommands [are there|exist|does it have]?", "[the|all] [options|flags] of [a command|chat|pack], where?", "[which|what] commands does [edgespec|EdgeSpec|it] [provide|give|include|come with|know]?", "what can [edgespec|EdgeSpec|the edgespec command] do [in the shell|in a terminal|from the shell]?", "[edgespec|EdgeSpec] commands?"),
    ),
    Topic(
        "server", "There is no server yet. Use the command line, or Python.",
        ("edgespec serve", "the server"),
        ("[start|run|open] [a|the] [server|HTTP server|web server|API server]", "[serve|offer] a model [over HTTP|over the network|to others|]", "use the OpenAI [interface|API|protocol]"),
        ("[does|has] [EdgeSpec|it] [have|offer|come with|] a server?", "[is there|do you have] [a|an] [server|web server|OpenAI server|REST API|OpenAI-compatible server]?", "[can|could] I [reach|use|call] it over [HTTP|the network|the web]?", "HTTP server?", "OpenAI interface?"),
    ),
    # Drafting
    Topic(
        "--drafter", "--drafter chooses who drafts tokens: none, auto, ngram, model, substitute or cascade.",
        ("--drafter", "the [flag|option] --drafter"),
        ("[choose|select|set|change|pick|switch|specify|take] [the|a|another|a different|my] drafter", "[say|decide|choose] who [drafts|makes the drafts|guesses]"),
        ("[which|what] drafters [are there|exist|can I use|does EdgeSpec have|can I choose|do you have]?", "[which|what] [flag|option] [chooses|selects|sets] the drafter?", "list [the|all] drafters", "what can --drafter be?", "kinds of drafters?", "who can draft?", "what kinds of [drafters|drafting] are there?", "which values [does|can] --drafter [take|have]?"),
    ),
    Topic(
        "--drafter none", "--drafter none switches drafting off.",
        ("--drafter none",),
        ("[turn off|switch off|disable|stop|deactivate|leave out|forbid|prevent] [drafting|the drafts|the drafter|speculation|drafts|speculative decoding|all drafts|the drafting]", "[run|chat|start|work|use it] without [a drafter|drafting|any drafts|speculation|speculative decoding|the cascade]", "have no [drafts|drafter|drafting|speculation]", "[disable|forbid|turn off|stop|switch off] [speculative decoding|speculation|all speculation]", "do without [drafts|speculation|a drafter]"),
        ("no [drafts|drafter|drafting|speculation] [please|]", "I [do not want|want no|don't want] [drafts|drafting|speculation|a drafter]", "[drafting|drafts|speculation] off", "can drafting be [turned off|switched off|disabled]?", "which [flag|option] [switches off|disables|turns off] [drafting|drafts]?", "[drafts|drafting|speculation] [off|away], how?", "switch off [drafts|the drafting|speculation]", "[turn|switch] the [drafts|drafting] off", "disable [drafts|drafting|the drafter|speculation]"),
    ),
    Topic(
        "--draft-model", "--draft-model MODEL names a small model with the same tokenizer that drafts.",
        ("--draft-model", "the [flag|option] --draft-model", "a draft model"),
        ("[use|take|have|give it|choose|add] [a|another|a second|some|my own] [small model|smaller model|little model|draft model|tiny model] [as drafter|to draft|for drafting|as a drafter|for the drafts|]", "[let|make|have] [a|another|one] [small|smaller|little|second|tiny] model [draft|guess|propose tokens|make the drafts|draft for the large one]"),
        ("[can|could] [a|another] [small|smaller|second|tiny] model [draft|make the drafts|guess the tokens|be the drafter]?", "[which|what] [flag|option] names [the|a] draft model?", "where do I [give|name|put] the [draft model|small model]?", "which model can be the draft model?"),
    ),
    Topic(
        "--adapters", "--adapters DIR uses what edgespec train cascade made.",
        ("--adapters", "the [flag|option] --adapters"),
        ("[use|load|give|take|apply|try|name] [the|my|trained|my trained|my own] [adapters|trained adapters|cascade that I trained|cascade adapters|trained cascade]", "[chat|run] with [my|the|trained] adapters", "pass [the|my|some] [trained|] [adapters|cascade] [to chat|to it|to the program|on]", "[use|load|chat with] the adapters [I made|that I made|from training|of my training]"),
        ("[which|what] [flag|option] [takes|names|loads] [the|my] adapters?", "where do [the|my] adapters go?", "I [trained|have] adapters, [what now|how do I use them]?", "I trained a cascade, how do I use it?", "where do I [give|put|name|hand over] [the|my] [trained|] [adapters|cascade adapters|cascade]?", "how do I [use|load|apply] [my|the] [trained|new|finished] adapters?", "[I made|I have trained] adapters, how do I [load|use] them?"),
    ),
    Topic(
        "--tree-nodes", "--tree-nodes N is the most drafted tokens that one pass checks.",
        ("--tree-nodes", "the [flag|option] --tree-nodes"),
        ("[set|change|limit|choose|raise|lower|bound] [the size of the tree|the number of drafted tokens|how many tokens are drafted|the tree's size|the number of nodes|how large the tree is]", "[draft|verify|check] [more|fewer] tokens [at once|in a pass|in one pass]"),
        ("how [large|big] is the [tree|draft tree|token tree]?", "[which|what] [flag|option] sets the [size of the tree|number of nodes|tree size]?", "how many drafted tokens are checked [at once|in one pass|in a pass]?"),
    ),
    Topic(
        "--acceptance", "--acceptance says which drafts are kept: greedy, sample, ratio or typical. Only typical is lossy.",
        ("--acceptance", "the [flag|option] --acceptance", "acceptance", "typical acceptance", "the acceptance rule"),
        ("[choose|set|change|select] [the|an|another] [acceptance|acceptance rule|rule of acceptance|way drafts are accepted]", "decide which drafts are [kept|accepted]"),
        ("[which|what] drafts are [kept|accepted]?", "is typical [acceptance|] lossy?", "which acceptance is lossy?", "kinds of acceptance?", "what are the values of --acceptance?", "which rules of acceptance does it have?"),
    ),
)  # fmt: skip
