"""Topics of use: more of the chat, defaults of options, scripts, drafting and training, and the Python API."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_topics import Topic

CHAT = "[chat|conversation|talk|session]"

TOPICS: tuple[Topic, ...] = (
    # The chat
    Topic(
        "block", 'Type """, then the lines, then """ again. Or begin each new line with Alt-Enter.',
        ('"""', "triple quotes", "three quotes"),
        ("[paste|enter|type|send|put in] [a block of text|several paragraphs|a whole paragraph|a piece of code|code|a poem|a long text|text with line breaks|many lines|a multi-line text|multi-line code]", "paste [something|text] with line breaks"),
        ("[multi-line|multiline] [input|paste|text|messages]?", "can I [paste|enter] [code|several paragraphs|multi-line text|a long text|text with line breaks]?", "what are the [triple|three] quotes for?", "when I paste [code|text], each line is sent", "paste [code|a text]?"),
    ),
    Topic(
        "typing ahead", "What you type while a reply is written waits for the next prompt.",
        ("type-ahead", "typing ahead"), ("type while [you are|the model is] [writing|answering|talking]",), ("can I type [while you answer|while it answers|during a reply|ahead|already]?", "what happens to what I type [during a reply|while it writes]?", "type-ahead?"),
    ),
    Topic(
        "Tab", "Tab completes the slash commands, and the arrow keys bring back earlier lines.",
        ("the Tab key", "the arrow keys", "Tab", "arrow up"), ("[get|bring] back [my|the] last [line|input|prompt]", "[repeat|edit|recall] what I typed before", "complete [a slash command|slash commands]"), ("does Tab complete [commands|slash commands] [in the chat|here]?", "can I [get back|recall|scroll through] [earlier|my old] lines?", "does arrow up work?", "are there [shortcuts|key bindings] [in the chat|here]?", "input history with arrow up?"),
    ),
    Topic(
        "--system", "edgespec chat MODEL --system TEXT sets the system prompt from the start.",
        ("--system", "the [flag|option] --system"), ("[set|give] the system prompt [on the command line|as a flag|at the start|when I start|from the shell]", "start [the chat|chat] with a system prompt"), ("[which|what] [flag|option] sets the system prompt?", "is there a flag for the system prompt?", "system prompt on the command line?"),
    ),
    Topic(
        "change model", "No. Leave the chat, and start again with another MODEL.",
        ("/model",), ("[change|switch|swap] [the model|models] [in the chat|while chatting|during the chat|without leaving|in a running chat|inside a chat|with a slash command]",), ("can I [change|switch|swap] [the model|models] [in the chat|while chatting|during the chat|here|on the fly|without leaving]?", "/model", "is there a [/model|command to switch models]?", "[load|use] another model in this chat?"),
    ),
    Topic(
        "saved by itself", "Yes, the last conversation is kept for --continue. --no-history keeps none.",
        ("autosave", "automatic saving"), (), ("is [the|my|this|our] CHAT [saved|kept|stored|remembered] [automatically|by itself|when I leave|when I quit|if I close the terminal]?".replace("CHAT", CHAT), "do I have to save [the|my|every] CHAT [myself|]?".replace("CHAT", CHAT), "is there an autosave?", "does it save [the chat|conversations|what we said] [automatically|by itself]?", "do you remember [me|our last chat|what we said yesterday] [next time|tomorrow|]?", "what if I close the terminal without saving?", "autosave?", "does it remember old conversations?"),
    ),
    Topic(
        "saved file", "It is a JSON file that only you can read, in the folder where you started edgespec.",
        ("the file of /save", "the saved file"), (), ("[which|what] [format|kind of file|file type] does /save [use|write|make]?", "[can|may] [others|other users|anybody] read [my|the] saved [chat|conversation|file]?", "[where|in which folder] [does|will] /save [write|put] [it|the file|the chat]?", "is it [JSON|text|readable] what /save writes?", "where [is|does it put|do I find] the saved [file|chat|conversation]?", "is the saved [file|chat] [JSON|plain text|readable]?", "[which|what] folder does /save [use|write to]?", "can I [read|edit|open] the saved file?"),
    ),
    Topic(
        "edit message", "/undo takes the message back. Then type it again.",
        ("editing a message",), ("[edit|change|fix|correct|rewrite|rephrase] [my|the] [last|previous] [message|question|prompt]", "[send|ask] my last question [again|] with [a change|other words]"), ("can I [edit|change|fix|correct] [a|my last|my] [message|question] [after sending|that I sent|]?", "is there an /edit?", "editing a sent message?"),
    ),
    Topic(
        "stopped reply", "What it said so far stays in the conversation.",
        ("[a stopped|an interrupted] reply",), (), ("what [happens|becomes] [to|of|with] [a stopped reply|an interrupted reply|a reply that I stop|the reply after Ctrl-C|half a reply]?", "is [a stopped reply|an interrupted reply|half a reply] [kept|lost|forgotten|in the conversation]?", "do I lose the [reply|text] [when I|if I] [stop|interrupt] it?", "is the text [lost|gone] after Ctrl-C?"),
    ),
    Topic(
        "context full", "/clear starts afresh when the context is full. --context makes it longer from the start.",
        ("a full context", "[the|a] full context window", "ContextError"), (), ("what [if|happens if|happens when|do I do when|can I do if] the [context|context window|conversation|chat] is [full|too long|at its end|used up]?", "[the|my] context [ran out|is used up|is exhausted]", "[it|chat] [stopped|ended] because the context is full", "the context [of 512 positions|] is full", "context is full, what now?", "[it|the chat] says [that|] the context is full", "the [conversation|chat] [got|is] too long", "how long may [a|the] conversation [be|get|become]?", "ContextError", "what happens at the end of the context?"),
    ),
    # Defaults
    Topic(
        "default context", "The memory plan sets how many tokens fit, and chat says it at the start.",
        ("the default [context|context length|--context]",), (), ("[what|how long] is the [default|standard|usual] [context|context length|context size|--context|context window]?", "[which|what] context [do I get|is used|does it take] [by default|without --context|if I set none|normally]?", "who [decides|sets|chooses] the [context|context length|context size]?", "[default|standard] [context|context length|context window]?", "how [long|large|big] is the context [by default|without --context|normally]?", "what if I [leave out|do not give] --context?", "default of --context?", "does it use the model's full context?"),
    ),
    Topic(
        "default temperature", "The default temperature is 0: the likeliest token is taken, so replies are repeatable.",
        ("greedy decoding", "greedy", "the default temperature"), (), ("[what|which] temperature is [the default|used by default|standard|normal]?", "does it sample by default?", "what is the temperature [by default|if I set none|when I start]?", "default of --temperature?", "is it [deterministic|greedy] by default?", "default temperature?", "are replies random by default?"),
    ),
    Topic(
        "temperature first", "At temperature 0 they change nothing, so they are refused. Give --temperature, too.",
        (), (), ("why [is|are] [--top-p|--top-k|--min-p|top-p|top-k|min-p] refused?", "[--top-p|--top-k|--min-p|top-p|top-k] [is refused|does not work|gives an error|needs a temperature]", "can I use [--top-p|--top-k|--min-p|top-p] [without a temperature|at temperature 0|alone]?", "do [--top-p|top-k|top-p|min-p] need a temperature?", "/set top-p [is refused|fails]"),
    ),
    Topic(
        "default length", "Without --max-tokens, a reply ends where the model ends it, or when the context is full.",
        ("the default [length of replies|--max-tokens|length|reply length]",), (), ("what is the [default|standard|usual] [length|reply length|maximum length|--max-tokens|max-tokens|number of tokens]?", "[when|where|how] does [a|the] reply [end|stop] [by itself|if I set no limit|without --max-tokens]?", "is [a reply|the length of replies|the length] [limited|unlimited|bounded] [by default|if I say nothing|normally|]?", "[default|standard] max tokens?", "how long is a reply [by default|without --max-tokens|normally]?", "when does a reply end [by itself|]?", "default of --max-tokens?", "what if I do not [give|set] --max-tokens?", "is there a [standard|default] limit for the [length|tokens]?"),
    ),
    Topic(
        "default seed", "The default seed is 0. It matters only above temperature 0.",
        ("the default seed",), (), ("[what|which] is the [default|standard|usual] seed?", "why [does|did] [the|my|another] seed [do nothing|not help|change nothing|not matter|make no difference]?", "is [the|a] seed [needed|used|important] [at temperature 0|without sampling|when greedy]?", "[another|a different] seed gives the same [reply|text|answer]", "seed [by default|without --seed]?", "default seed?", "[what|which] seed does it use [by default|]?", "does [the seed|--seed] matter at temperature 0?", "--seed [has no effect|does nothing|changes nothing], why?", "I set a seed and nothing changes", "default of --seed?", "why does --seed not change [the reply|anything]?"),
    ),
    Topic("several stops", "Yes, give --stop several times.", (), ("[set|give|use] [two|several|many|multiple] stop [texts|words|sequences|strings]",), ("can I [give|set|use|have] [several|two|multiple|many] stop [texts|words|sequences|strings]?", "is --stop repeatable?", "more than one --stop?")),
    Topic(
        "repetition", "Against repetition, use a --temperature such as 0.7. There is no repetition penalty.",
        ("[the|a] repetition penalty", "frequency penalty"), ("[stop|avoid|prevent] [repetition|repetitions|loops|the model from repeating itself]", "set a [repetition|frequency|presence] penalty"), ("[the model|it|the reply] [repeats itself|loops|says the same again and again|is stuck in a loop|keeps repeating]", "is there a [repetition|frequency|presence] penalty?", "repetition penalty?", "why does it repeat [itself|the same sentence]?"),
    ),
    # Scripts
    Topic(
        "chat or generate", "chat talks in the model's chat format; generate only continues a text.",
        ("the difference [between|of] [chat and generate|generate and chat|edgespec chat and edgespec generate]",), (), ("[chat or generate|generate or chat|chat vs generate]?", "what is different [in|about] generate?", "when do I use [chat and when generate|generate instead of chat]?", "why does generate not answer my question?", "should I use [chat|generate] or [generate|chat]?", "generate does not answer, it [goes on|continues]"),
    ),
    Topic(
        "many prompts", "edgespec generate reads one prompt a line: edgespec generate MODEL < prompts.txt.",
        ("batch mode", "batch processing"), ("run [many|several|a list of|a file of|hundreds of|100] prompts", "[process|answer|run] [a file with prompts|many prompts at once|a batch of prompts|prompts from a file|a list of questions]"), ("can I [give|run|send] [many|several|multiple] prompts [at once|in a file|]?", "batch mode?", "is there [batch processing|a batch mode]?", "prompts from a file?", "is -p repeatable?"),
    ),
    Topic("--keep-going", "--keep-going goes on with the next prompt when one fails.", ("--keep-going", "the [flag|option] --keep-going"), ("[go on|continue] [after|when] [an error|a prompt fails|a prompt that fails]", "skip [prompts that fail|a bad prompt]"), ("what if one prompt fails?", "does generate stop at the first error?", "one prompt fails and [the run ends|everything stops]")),
    Topic(
        "JSON prompts", 'A line may be JSON, such as {"turns": ["Hello!"]}.',
        ("turns in JSON", "a JSON prompt"), ("give [prompts of several lines|prompts in JSON|a conversation|JSON prompts] to generate", "[send|give] generate [JSON|a conversation]"), ("does generate [read|take|accept] JSON?", "JSON input?", "can a prompt have several lines [in generate|]?", "how does a JSON prompt look?"),
    ),
    Topic(
        "JSON fields", "Each object has prompt, text, tokens, finish_reason and stats, such as tokens_per_second.",
        ("the [fields|keys] of [the JSON|--json]", "the JSON object"), (), ("what is in the JSON [output|object|]?", "[which|what] [data|figures|values|numbers] [are|is] in the JSON [output|]?", "[are|is] [the stats|the tokens|the speed|peak memory|the text] in the JSON [output|]?", "[what|how] does --json print [exactly|]?", "[which|what] [fields|keys] [does --json have|has the JSON|are in the JSON|does the JSON output have]?", "how does the JSON [output|] look?", "is the speed in the JSON?", "fields of --json?"),
    ),
    Topic("finish_reason", "finish_reason is stop, length or cancelled.", ("finish_reason", "the finish reason"), (), ("why did the reply end?", "[which|what] finish reasons are there?", "how do I know why a reply ended?")),
    Topic("structured", "No, replies cannot be forced into JSON or a grammar.", ("[structured output|a grammar|JSON mode|constrained decoding|GBNF]",), ("[force|make] the [reply|model|output] [to be|into|write] JSON", "[use|give it] a [grammar|JSON schema]"), ("is there [a JSON mode|structured output|constrained decoding|grammar support]?", "can [replies|the reply] be [JSON|forced into JSON|constrained]?")),
    Topic(
        "no tools", "No, it cannot search the web, call tools or open PDFs. It only writes text.",
        ("[function calling|tool calling|tool use|RAG|web search|agents]",), ("[let it|make it] [search the web|call functions|use tools|read PDFs|browse|run code]", "[use|add] [tools|function calling|RAG|web search|plugins]"), ("[can|does] [it|EdgeSpec|the model] [search the web|browse|use tools|call functions|read PDFs|open PDFs|run code|read Word files|support function calling]?", "is there [function calling|tool use|RAG|web search|a plugin system]?", "[function calling|tools|RAG|web search|agents]?"),
    ),
    Topic(
        "bench options", "In bench, -p are lengths of prompts, -n lengths of replies, and -r the number of runs.",
        ("bench -p", "bench -n", "bench -r", "--repetitions", "--new-tokens", "--prompt-tokens"), ("[change|set] [the lengths|the number of runs|how long it runs] [in bench|of a benchmark|for bench]", "make [bench|the benchmark] [shorter|longer|quicker]"), ("[which|what] options has bench?", "bench takes too long", "how often does bench repeat?"),
    ),
    Topic("pp and tg", "pp is the reading of a prompt, tg the writing of a reply, in tokens/s.", ("pp", "tg", "[pp512|tg128|pp and tg]"), (), ("what do pp and tg mean?", "what does bench print?", "how do I read the [table|figures] of bench?")),
    # Drafting and training
    Topic(
        "which drafter", "Leave it at auto. A substitute, a small model or trained adapters draft better than n-grams.",
        ("--drafter auto",), ("[choose|find|pick] the [best|right|fastest] drafter",), ("[which|what] drafter [is best|should I use|should I take|is fastest|do you recommend|is the best|shall I choose|is good for me]?", "best drafter?", "is [the cascade|ngram|a draft model|the substitute|model] better than [the cascade|ngram|a draft model|the substitute]?", "what does auto [do|choose|take]?", "[ngram or model|cascade or substitute|substitute or draft model]?", "recommended drafter?", "which drafter gives the best speed?"),
    ),
    Topic(
        "drafts by default", "Yes, it drafts by itself, wherever that makes replies faster.",
        ("the default drafter", "automatic drafting"), (), ("is [drafting|speculative decoding|speculation] [on|active|used|enabled] [by default|without a flag|already]?", "do I have to [turn on|enable|switch on] [drafting|speculation|drafts]?", "what is the default drafter?", "does it draft [by default|by itself|without a flag]?", "default of --drafter?", "do I [have|need] to [choose|name|give] a drafter?", "is [drafting|a drafter] automatic?", "[are|is] [drafts|drafting] on?", "does [chat|generate|it] use [drafts|speculation] without [a flag|me asking|an option]?"),
    ),
    Topic(
        "two drafters", "Yes, such as ngram+model, ngram+cascade or cascade+substitute.",
        ("ngram+model", "cascade+substitute", "ngram+substitute", "ngram+cascade"), ("[combine|use|mix] [two|several] drafters",), ("can I [combine|use|mix] [two|several] drafters?", "can drafters be combined?", "two drafters [at once|together]?", "what does the plus in ngram+model mean?"),
    ),
    Topic(
        "drafts do not pay", "If drafts do not pay, EdgeSpec stops drafting by itself.",
        (), (), ("[can|do|will] [drafts|drafting|speculation] [make it slower|slow it down|cost speed|cost time|be slower]?", "what if [drafting|the drafter|drafts] [does not help|do not help|is slower|are bad|never fit|is useless]?", "is drafting always [faster|good|worth it]?", "[drafting|it] [has paused|was paused|stopped drafting], why?", "why are there no drafts?", "does drafting always help?"),
    ),
    Topic(
        "how much faster", "By text, disk and drafter: 1.5 to 4.6 times in our benchmarks.",
        ("the speedup", "the gain from drafts", "the speedup of [drafts|drafting|the cascade]"), (), ("how much faster [is it|does it get|are replies|is a reply] with [drafts|drafting|speculation|a drafter|the cascade|a draft model|adapters]?", "what [speedup|gain|speed-up] [do drafts bring|does drafting give|can I expect|does the cascade give]?", "how many times faster?", "how much do drafts [help|bring|gain]?", "what is the speedup?"),
    ),
    Topic(
        "same tokenizer", "A draft model needs the target's tokenizer: take a small model of the same family.",
        ("the right draft model", "a draft model for [Llama|Qwen3|Mistral]"), ("[find|choose] a draft model",), ("[which|what] [draft model|small model] [should I take|fits|is good|for Qwen3-8B|do I use|for Llama]?", "can any model be the draft model?", "the tokenizers [differ|do not match|are different]", "must the draft model [have the same tokenizer|be of the same family]?", "[error|] draft model has another tokenizer", "draft model for {known}?", "which small model for {known}?"),
    ),
    Topic(
        "adapters", "Adapters are small trained parts that let a model draft with its own first layers.",
        ("adapters", "[an|the] adapter", "[cascade|trained] adapters"), (), ("do adapters change the [model|output]?", "how large are adapters?", "[why|what for] do I need adapters?", "are adapters needed?", "what are adapters for?"),
    ),
    Topic(
        "training data", "A .txt or .jsonl file, or a directory of them: text like that which you will ask for.",
        ("--data", "the training [data|text]"), (), ("[which|what] [text|data|files|format] [does training need|should I train on|is good for training|does --data take|for training]?", "what goes into --data?", "how much [text|data] does training need?", "which format has the training data?"),
    ),
    Topic(
        "training time", "Hours, or a day if the model streams. A machine that holds the model is the better place.",
        ("the training time", "the time that training takes"), (), ("how long does [training|train|it take to train|training adapters|training a cascade] [take|last|]?", "is training [slow|fast|expensive]?", "can I train on [my|a] {machine}?", "training time?", "how many hours does training take?"),
    ),
    # Exactness, more closely
    Topic(
        "sampling exact", "Yes. With one seed, sampled text is the same with drafts and without.",
        (), (), ("is [it|the output|drafting] [also|still|] exact [with|when] [sampling|a temperature|temperature 0.7|sampled replies]?", "does [sampling|a temperature] [break|change] [exactness|that]?", "are sampled replies [exact|the same with drafts|lossless]?", "exact [with|at] [temperature|sampling], too?", "does [seed|sampling] give the same [text|reply] with and without [drafts|a drafter]?"),
    ),
    Topic(
        "threads and bits", "Another number of threads may round otherwise in the last bit.",
        (), (), ("[does|can|will] [--threads|the number of threads|fewer threads|more threads|another machine] change the [text|output|reply|result|bits]?", "is the [text|output|reply] [exactly|] the same with [fewer|more|other|two] threads?", "[another|a different] [text|reply|output] [with|after changing] --threads, why?", "is the output the same with [another number of threads|more threads|one thread]?", "why is the text different [on another machine|with other threads]?", "is the output the same on [every machine|two machines|another computer]?"),
    ),
    # Python
    Topic("Python reply", 'edgespec.generate(engine, "text", max_tokens=20).text is the reply.', ("edgespec.generate",), ("[get|make|generate] [a reply|one reply|text|an answer] in Python",), ("how do I generate in Python?", "[show|give] me [a Python example|an example in Python]", "Python example?", "example code?")),
    Topic("Python stream", 'for r in edgespec.stream_generate(engine, "text"): print(r.text)', ("stream_generate", "edgespec.stream_generate"), ("[stream|print] [tokens|the reply|a reply] [one by one|as it comes|] in Python", "get tokens one by one in Python"), ("can I stream [tokens|replies] in Python?", "streaming [API|in Python]?", "streamed replies in Python?")),
    Topic("Python chat", 'with edgespec.Chat(engine) as chat: print(chat.send("Hello!").text)', ("edgespec.Chat", "the Chat class"), ("[have|keep|hold] a [conversation|chat] in Python", "chat from [Python|my code|my program]"), ("chat in Python?", "how do I keep a conversation in [Python|my program|code]?")),
    Topic("asyncio", "Yes: agenerate, astream_generate, and Chat's asend and astream.", ("asyncio", "agenerate", "astream_generate"), ("use [it|EdgeSpec] [with|in|from] asyncio", "await a reply"), ("[is there|does it have] [an async API|asyncio support|async support]?", "[does|can] [it|the API] [work with asyncio|support async|be used with await]?", "async?")),
    Topic("Python options", "An option has its name with underscores in Python: --max-tokens is max_tokens=.", (), ("[set|give|pass] [options|the options|the temperature|max tokens] in Python",), ("how are options [named|written|given] in Python?", "[which|what] keywords does [load|edgespec.load|generate] take?", "options in Python?", "does Python read edgespec.toml?")),
    Topic("Python errors", "All errors are EdgeSpecError; a memory limit too small is a BudgetError.", ("EdgeSpecError",), ("[catch|handle] [errors|exceptions|an error] in Python",), ("[which|what] [errors|exceptions] [are there|does it raise|can it raise] [in Python|]?", "exceptions?")),
    Topic("several at once", "In Python, sessions in threads share the passes, and each says what it would say alone.", ("concurrency", "batching", "parallel requests"), ("[serve|answer] [several|many|two] [users|conversations|people] [at once|at the same time|in parallel]", "run [several|two] [replies|sessions|chats] in parallel"), ("can [several|two|many] [users|people|sessions|chats] [use it|run] [at once|at the same time|in parallel]?", "does it [batch|run requests in parallel]?", "[concurrency|batching|parallel requests|multi-user]?", "is it thread-safe?")),
)  # fmt: skip
