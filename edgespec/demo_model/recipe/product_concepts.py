"""Topics of what EdgeSpec is: its terms, where models come from, and what to do about trouble."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_topics import Topic

EDGE = "[EdgeSpec|edgespec|this program|this project|this software|this tool]"

TOPICS: tuple[Topic, ...] = (
    Topic(
        "EdgeSpec", "EdgeSpec runs language models that are larger than the memory they may use. It streams their layers from flash.",
        ("EdgeSpec", "[this|the] [program|project|software|tool|app]", "the EdgeSpec [runtime|project|program]"),
        (),
        ("what {e} [is|does]?".replace("{e}", EDGE), "what [is|are] the [goal|purpose|idea|use|point|benefit|advantage] of {e}?".replace("{e}", EDGE), "[why|when|for what] [do I use|should I use|do I need|do people use|is there|would anyone use|to use] {e}?".replace("{e}", EDGE), "[describe|introduce|sum up|present] {e} [briefly|in a few words|shortly|in a sentence|]".replace("{e}", EDGE), "what can {e} do [for me|]?".replace("{e}", EDGE), "what is this?", "what is this [all about|here]?", "what kind of [program|software|thing|tool] is [this|EdgeSpec|it]?", "I have never heard of EdgeSpec", "what have I installed?", "how does {e} work?".replace("{e}", EDGE), "[explain|describe|summarise|define] [EdgeSpec|edgespec|this] in [a few|two|simple|short] [words|sentences|lines]", "what is [EdgeSpec|edgespec] [good|made|there] for?", "[edgespec|EdgeSpec] explained"),
    ),
    Topic(
        "models", "Give a Hugging Face id or directory, a GGUF file, or a packed directory. An id is downloaded.",
        ("MODEL", "a MODEL", "the MODEL"),
        ("[get|find|download|fetch|obtain|load|give it] [a model|models|a language model|new models|some model]", "[use|load|run|open|read] a [GGUF file|gguf|Hugging Face model|packed directory|hub id|Hugging Face directory|safetensors model|checkpoint]", "download [from Hugging Face|a model from the hub|a model]"),
        ("[which|what] [formats|files|file types|file formats|kinds of files|models|model files] [can EdgeSpec read|does it read|does EdgeSpec load|are supported|does it take|can I load|does it understand|can I use]?", "where [do I get|can I get|do I find|can I download|can I find|does it get] [models|a model|the models|its models]?", "[can|does] [it|EdgeSpec|this] [read|load|open|use|take|support] [GGUF|gguf files|GGUF files|safetensors|Hugging Face models|models from Hugging Face|a hub id]?", "what [is|do I write for|do I give for|stands for|goes in place of] MODEL?", "is GGUF [supported|possible]?", "how do I name a model?", "model formats?", "from where [does it take|do I get|come] [the models|models|a model]?", "who makes the models?", "[can|does] it [open|read|take] [a|] [gguf|safetensors] [file|files|model]?", "[file formats|formats] [it reads|that it can read]?", "what file [types|formats] [can|does] it [read|load|open]?", "source of the models?", "where do I get [them|models for it]?", "[where|how] does one [get|find] models?"),
    ),
    Topic(
        "families", "EdgeSpec knows Llama, Vicuna, Mistral, Qwen2 and Qwen3 models.",
        ("the [supported|known] [models|families|architectures]", "model support"),
        ("know which [families|architectures|models] are [supported|known]",),
        ("[which|what] [families|architectures|kinds of models|model families|types of models|models by name] [are supported|are known|does it know|can it run|does EdgeSpec support|run|does it support]?", "[supported|known] [models|architectures|families|LLMs]?", "[list|name|tell me] the [models|families|architectures] [that run|it knows|it supports|that are supported]", "[which|what] [models|LLMs] [can I run|run|work|are there|can it run|are supported]?", "is there a list of [supported|] models?", "models it supports?"),
    ),
    Topic(
        "downloads", "Downloads go to the Hugging Face cache. HF_HOME moves it.",
        ("HF_HOME", "the Hugging Face cache"),
        ("[change|move|choose|set] [where models are stored|the download folder|the cache folder|where downloads go|the cache of models]", "[find|delete|remove] [downloaded models|the downloads|the models on my disk|a downloaded model]"),
        ("where [are|does it keep|does it put|do I find|does it store] [the models|downloads|downloaded files|models that it downloads|the downloads|downloaded models] [on disk|kept|on my disk|]?", "[which|what] [folder|directory] [has|holds] [the downloads|downloaded models]?", "where is the [cache|download folder|model cache]?", "download folder?", "where do [downloads|downloaded models] go?", "in [which|what] [folder|directory|place] [are|does it keep] [the downloads|models|downloaded models]?", "where on [my|the] disk [are|do I find] [the|] models?", "where does a download [go|land|end]?"),
    ),
    Topic(
        "private", "Everything runs on your machine. Nothing that you type is sent anywhere.",
        ("[privacy|data protection|telemetry]",),
        ("keep my [messages|data|texts|questions] private",),
        ("[is|are] [this|it|my messages|what I type|this chat|my texts|my questions|everything] [private|safe|secret|confidential|local]?", "[do|does] [you|EdgeSpec|it|the program] [send|upload|share|collect|transmit|report|leak] [my data|my messages|what I type|anything|data|my questions|something] [anywhere|somewhere|to a server|to the cloud|over the internet|to others|]?", "who [can read|sees|gets|reads] [my messages|my questions|what I write here|this chat]?", "where does the model run?", "does it run [in the cloud|locally|on a server|on my computer|on my machine]?", "privacy?", "does [something|anything|what I type|my text|a message] leave [my computer|my machine|this machine]?", "[does|do] [this|my data|my words|my messages] go [to a company|to the internet|to a server|anywhere|somewhere|online]?", "[can|does] anybody [else|] [read|see] [this|what I write|my words]?", "is there telemetry?", "is anything [sent|uploaded|shared]?"),
    ),
    Topic(
        "licence", "EdgeSpec has the MIT licence: free, with its source.",
        ("the licence", "the license"),
        ("use EdgeSpec for free", "[get|read] the source"),
        ("[which|what] [licence|license] [does EdgeSpec have|is EdgeSpec under|is it under|is this under|is it]?", "[what is|tell me] the [licence|license] [of EdgeSpec|of this|]?", "is [EdgeSpec|it|this|this program] [free|free software|open|for free|open-source]?", "what does [it|EdgeSpec] cost?", "[can|may] I [use it|use EdgeSpec|sell it|change it|share it] [at work|for free|in my company|]?", "do I have to pay?", "under which [licence|license] [is it|is EdgeSpec]?"),
    ),
    Topic(
        "install", "Run ./install.sh, then .venv/bin/edgespec chat.",
        ("install.sh", "./install.sh", "the installation"),
        ("[install|set up|get|build] [EdgeSpec|it|edgespec|the program|this] [on my machine|on a new machine|here|on another computer|on my laptop|]", "[set it up|get it to run|start for the first time]"),
        ("how is [it|EdgeSpec] installed?", "[installation|install|setup]?", "what must I do to install it?", "where do I begin with EdgeSpec?", "which script installs [it|EdgeSpec]?", "first steps?"),
    ),
    Topic(
        "demo", "I am only a small demo model, so I am often wrong. EdgeSpec runs larger models.",
        ("this demo", "the demo model"),
        (),
        ("why [are you|is this model|are your replies] so [stupid|dumb|simple|weak|limited|often wrong|small]?", "why do you [know so little|make mistakes|say such things|know nothing|answer so badly|get it wrong]?", "are you [GPT|GPT-4|Gemini|like GPT|a good model|clever|smart|Claude|Llama|reliable|a large model like GPT|always right|often wrong|intelligent|as good as GPT]?", "can I [trust|believe|rely on] [you|your answers|what you say]?", "your [answers|replies] are [bad|wrong|not good|poor|weird|strange|nonsense]", "how [clever|smart|reliable|right|trustworthy] are you?", "do you make mistakes?", "how many of your answers are [wrong|right]?", "[are|is] [your answers|what you say] [right|true|correct]?", "are you [an AI like GPT|GPT or what|one of the big models|OpenAI's model|the same as GPT]?", "why is your [answer|reply] [wrong|bad|nonsense]?", "how [good|right|reliable] are [your answers|your replies|you at this]?", "how good is [this model|the demo model|the demo]?"),
    ),
    # Drafts
    Topic(
        "drafts", "Drafts are guessed tokens. The model checks many at once and keeps those that it would have written.",
        ("[a draft|drafts|drafting]", "[drafted tokens|a drafted token]", "the drafts"),
        (),
        ("what is a draft [here|in EdgeSpec|]?", "[what are|why are there|what use are|who needs] drafts?", "why does [it|EdgeSpec|the model] [draft|guess] [tokens|words|]?", "what [happens to|becomes of] [a draft|drafts|drafted tokens|wrong drafts]?", "how does drafting [work|help|make it faster]?", "why is drafting faster?", "what does drafted mean?", "what is it that gets drafted?", "how do [drafts|drafted tokens] [help|come about|make it fast]?", "how does it work with the drafts?"),
    ),
    Topic(
        "drafter", "A drafter proposes tokens quickly. The model then checks them.",
        ("[a|the] drafter", "drafters", "[this|your] drafter", "drafter"),
        (),
        ("[what|who] is [a|the] drafter [here|in EdgeSpec|]?", "what does [a|the] drafter do [here|]?", "why [is there|do I need|does it need|do we need] a drafter?", "what is the [purpose|role|task|work|point|meaning] of [a|the] drafter?", "who proposes [tokens|the tokens]?", "drafter?", "the drafter's [job|task|role|work]?", "what [job|task|work] has the drafter?"),
    ),
    Topic(
        "exact", "Yes. The output is exactly the model's own. Drafts never change it.",
        (),
        (),
        ("is the [output|text|result|reply|answer] [the same|exact|equal|identical|unchanged|correct] [as without drafts|as that of the model|with drafts|with EdgeSpec|when drafting|]?", "is [EdgeSpec|it|this|drafting|speculation|the drafting] [exact|lossless|without loss|safe for the quality]?", "[does|do|will|can] [drafting|drafts|speculation|EdgeSpec|streaming|the drafter|the cascade] [change|alter|harm|worsen|lower|affect|influence|spoil] [the output|the text|what the model says|the reply|the replies|the quality|the result|quality]?", "[does|will] the quality [suffer|get worse|fall|stay the same|drop]?", "do I get [the same text|the model's own output|the same output|the same answers|worse answers|the exact output]?", "[is|are] [quality|the replies|the answers] [lost|worse|the same]?", "is anything lost [by drafting|with drafts|]?", "are drafts [lossless|exact|harmless]?", "exact output?", "do I [give up|lose] [accuracy|anything|something|precision]?", "is [quality|accuracy|anything] lost?", "are [the|your] [replies|answers|outputs] [the same as|equal to|identical to] those of the [model|target|large model|original model|whole model]?", "do I get what the [whole|full|large] model would say?"),
    ),
    Topic(
        "how exact", "The model checks every drafted token and throws away what it would not have written.",
        ("exactness", "losslessness"),
        (),
        ("[how|why] [is|does] [the output|it|the text|the result|EdgeSpec] [stay|remain|keep|] [exact|lossless|the same|unchanged] [with drafts|although it drafts|in spite of drafts|]?", "[how|why] can [drafts|a draft|guessing|a guess|guessed tokens|speculation] [be exact|be lossless|not change the output|give the same text|leave the text as it is]?", "[how|why] do [drafts|guesses] [leave the output unchanged|leave the text as it is|not change the output|not harm the output|give the same output]?", "what [makes|keeps] [it|the output|drafting|the text] [exact|lossless|right]?", "how do you [know|ensure|guarantee|make sure] that [the output is the same|it is exact|drafts change nothing|it is lossless|nothing changes]?", "what [happens with|if there are|happens if there are] wrong [drafts|guesses]?", "who checks the drafts?", "what if a [draft|guess] is wrong?", "guarantee of exactness?", "[how|why] can [drafting|speculation] be [lossless|without loss]?", "[why|how come] drafts [never|do not] change [the output|anything|the answer]?", "what [guarantees|ensures|makes sure] that [it is exact|drafts change nothing|it is lossless|the text stays the same]?", "how do you keep it [exact|lossless]?"),
    ),
    Topic(
        "speculative decoding", "In speculative decoding, a drafter guesses several tokens and the model checks them together.",
        ("speculative decoding", "speculation", "speculative [execution|sampling]"),
        (),
        ("what is meant by [speculation|speculative decoding]?", "why [does it|do you|would a model] speculate?", "why is speculative decoding [used|fast|faster]?", "how does speculative decoding [work|go|function]?", "speculative decoding?", "what is speculative decoding [good|used] for?", "why [use|do] [speculation|speculative decoding]?"),
    ),
    Topic(
        "cascade", "In the cascade, the model's early layers draft, more layers check, and the last layers decide.",
        ("[the|a] cascade", "CATS", "the cascade drafter", "cascades"),
        (),
        ("how does the cascade [work|guess|check|make drafts]?", "who drafts in the cascade?", "how do early layers draft?", "[which|what] layers draft [in the cascade|]?", "cascade?"),
    ),
    Topic(
        "ngram", "The n-gram drafter proposes what followed the same words before.",
        ("[the|an] [ngram|n-gram] drafter", "ngram", "n-grams", "--drafter ngram"),
        (),
        ("how does [ngram|the n-gram drafter|the ngram drafter|an n-gram drafter] [work|draft|guess]?", "what do n-grams [do|guess|propose]?", "where do n-grams come from?", "n-gram?", "what is an n-gram?"),
    ),
    Topic(
        "token tree", "A token tree holds drafted tokens with several branches. The model checks all of them in one pass.",
        ("[a|the] token tree", "[a|the] draft tree", "the tree of drafts", "the tree"),
        (),
        ("why [is there|does it use|are drafts] a tree?", "what is in the tree?", "what are the branches [of the tree|]?", "what is the tree for?"),
    ),
    Topic(
        "target", "The target is the large model whose output you get. It checks the drafts.",
        ("[the|a] target", "the target model", "the [large|main|big] model"),
        (),
        ("[what|which model] is [meant by|called|] the target?", "what does the target [do|check]?", "whose output do I get?", "which model [writes|checks] [the text|the drafts|in the end]?", "target?"),
    ),
    # Memory and speed
    Topic(
        "slow", "For more speed, give it more memory, pack the model as int8, or let a drafter help. The disk sets the pace.",
        ("the [slowness|low speed]",),
        ("[make|get] [it|you|EdgeSpec|the model|replies|the replies|my model|everything] [fast|faster|quick|quicker|less slow|run faster|go faster]", "[speed it up|speed up the replies|get more speed|get more tokens per second|increase the speed|improve the speed|improve the performance|raise the speed|gain speed]", "wait less [for a reply|for an answer|]"),
        ("[it|this|the model|EdgeSpec|everything|my model|the reply|the chat] is [so|too|very|much too|terribly|extremely|] slow", "why [is|are] [the model|EdgeSpec|the replies|this|everything|the chat|my model|a reply] [so|very|this|] slow?", "why does [it|a reply|an answer|the model|the reply] take so [long|much time]?", "[can|could] [it|EdgeSpec|this|you|the model] be [faster|made faster|quicker|sped up]?", "what [makes it faster|helps against slowness|can I do when it is slow|to do if it is slow|limits the speed|makes it slow|sets the speed]?", "I have to wait [too long|for minutes|so long|forever]", "only one token [a second|per second|every few seconds]", "few tokens per second", "more speed [please|]", "faster [please|]", "[how|what] [do I do|can I do] [to make it faster|for more speed|against slow replies|about slow replies]?", "[speed up|accelerate] [EdgeSpec|the chat|the replies|this model|it]", "[a reply|it|the answer|everything] takes [forever|ages|minutes|very long|so long]", "slow replies?", "bad performance, what helps?", "how do I [speed this up|make this quicker|accelerate it|make replies faster]?", "what can [I|one] do about [the slowness|slow replies|its speed]?", "speed [it|things|this] up"),
    ),
    Topic(
        "does not fit", "Layers that do not fit are streamed from flash. If --memory is too small even for that, EdgeSpec says so.",
        (),
        ("[run|use|load|start] a [model that is too large|model larger than my memory|model that does not fit|large model with little memory|big model on a small machine|70B model|huge model|model bigger than my RAM|13B model]", "run a large model [on my laptop|with little memory|on a small computer|with little RAM|in 4 GB|in 8 GB]"),
        ("[my|the|a|this] model [does not fit|is too large|is too big|is larger than my memory|needs too much memory|will not fit|doesn't fit|won't fit into RAM|needs more memory than I have]", "what [happens|if|happens if|do I do if|do I do when|can I do when] [the|a|my] model [does not fit|is too large|is too big|is larger than the memory|needs more than I have|is bigger than memory|doesn't fit into RAM]?", "[I have|there is] [too little|not enough|little|not much] [memory|RAM] [for this model|for the model|for it|]", "out of memory", "[out of memory|memory error|not enough memory], what [can I do|should I do|do I do]?", "how does a [7B|13B|30B|65B|180B] model run [on|in|with] [1|2|4|6|16] GB?", "[a|my] [7B|13B|30B|65B] model [does not fit into|is too big for|on] [2|4|6|16] GB", "[memory is too small|not enough memory], what [now|do I do|then]?", "what if there is not enough [memory|RAM]?", "does the [whole|entire] model have to fit [in memory|]?", "must the model fit [in memory|into RAM]?", "memory is [full|not enough], what [now|do I do]?", "the model [needs more|wants more|is bigger] than [my memory|I have|my RAM]"),
    ),
    Topic(
        "streaming", "Streaming means that layers are read from flash while the model runs.",
        ("[streaming|layer streaming]", "[a streamed model|streamed layers|a streamed layer]"),
        (),
        ("why [does it|does EdgeSpec|do you] [stream|read layers|read the disk|read from flash|use the disk|read so much]?", "what does streaming [layers|a model|] mean?", "how are layers [streamed|read]?", "what is [read|streamed] from [flash|the disk]?", "what does streamed mean?", "what is going on with my disk?", "the disk is always busy, why?", "why does it [use|read|need] [my disk|the SSD|flash|the disk] [so much|again and again|constantly|so often]?", "why is the disk [busy|always read|so busy]?", "what does it read from [the disk|flash|my SSD] [all the time|again and again|]?"),
    ),
    Topic(
        "disk wear", "Streaming only reads from the disk. Reads do not wear it out.",
        ("[SSD|disk|flash] wear", "[the|] wear of the [disk|SSD]"),
        (),
        ("[is|are] [streaming|all this reading|so many reads|reading so much|it|EdgeSpec] [bad|harmful|dangerous] for [my|the] [disk|SSD|flash|drive]?", "[does|will|can] [EdgeSpec|streaming|this|reading] [harm|destroy|wear out|hurt|kill|age|ruin] [my|the] [disk|SSD|flash|drive]?", "does it write to [my|the] disk?", "how long will my [SSD|disk|drive] last?", "SSD wear?", "will my [SSD|disk|drive] [suffer|die|last|wear out]?"),
    ),
    Topic(
        "pinned", "Pinned layers stay in memory and are not read again.",
        ("[pinned layers|a pinned layer]", "pinning"),
        (),
        ("why are [some|a few|the first] layers pinned?", "what does [pinned|it mean to pin] [mean|a layer]?", "which layers get pinned [and why|]?", "what is a pinned layer?", "[why|what for] pin layers?"),
    ),
    Topic(
        "ring", "The ring is a bounded buffer in memory through which the streamed layers pass.",
        ("[the|a] ring", "the ring buffer", "the ring of buffers"),
        (),
        ("what [passes|goes] through the ring?", "why is there a ring?", "how large is the ring?", "what is the ring [used for|there for]?"),
    ),
    Topic(
        "ledger", "The ledger gives every byte of memory an owner.",
        ("[the|a] ledger", "the memory ledger"),
        (),
        ("who counts the bytes?", "why is there a ledger?", "how is memory [counted|accounted for]?"),
    ),
    Topic(
        "tok/cycle", "tok/cycle is how many tokens one pass over the model yields.",
        ("tok/cycle", "tokens per cycle", "tokens a cycle", "the number of tokens per cycle", "tok/cycle in the [line|figures|line after the reply]"),
        (),
        ("how many tokens [does a pass yield|come from one pass|per pass|does one pass give]?", "what is a cycle?", "what does tok per cycle [say|tell me]?"),
    ),
    Topic(
        "bytes per token", "GB/tok is how much is read from flash for each token.",
        ("GB/tok", "bytes per token", "gigabytes per token", "GB/tok in the [line|figures|stats line]"),
        (),
        ("how much is read [for each token|per token|for a token]?", "what does GB per tok [say|mean|stand for]?"),
    ),
    Topic(
        "peak", "Peak is the most memory the process has used since it started.",
        ("[the|] peak", "the peak in the stats line", "peak memory", "peak 7.9 GB of 8 GB", "peak in the [line|stats|figures]"),
        (),
        ("what does peak [say|stand for|mean]?", "which memory is the peak?", "what is [the|] peak [memory|in the line|after the reply]?", "how much memory was used at most?"),
    ),
)  # fmt: skip
