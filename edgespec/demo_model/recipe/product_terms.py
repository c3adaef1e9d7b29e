"""Topics of terms: what the words of EdgeSpec and of its figures mean."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_topics import Topic

TOPICS: tuple[Topic, ...] = (
    Topic("verification", "In verification, the model itself looks at all drafted tokens and keeps what it would have written.", ("verification", "[the verification|verifying] of drafts", "a verifier", "the verifier"), (), ("how are drafts [verified|checked]?", "who verifies [the drafts|the tokens]?", "what does verify mean [here|]?", "what is being verified?")),
    Topic("a pass", "A pass goes once through all layers of the model, for all drafts together.", ("a pass", "[one|a] pass over the model", "a forward pass"), (), ("what happens in [a|one] pass?", "how many passes does a token need?")),
    Topic("flash", "Flash is the disk that the model lies on, such as an SSD.", ("flash", "flash [memory|storage|] [in EdgeSpec|here]"), (), ("what do you mean by flash?", "is flash [my SSD|the disk|RAM]?", "flash or disk?")),
    Topic("a layer", "A layer is one of the model's equal steps. A pass goes through all of them.", ("a layer", "layers", "the layers of a model"), (), ("what are layers?", "how many layers [has a model|are there]?")),
    Topic("KV cache", "The KV cache keeps what the model computed for the tokens so far.", ("[the|a] KV cache", "the KV-cache", "keys and values", "kv cache"), (), ("how much memory does the KV cache take?", "does the KV cache count?")),
    Topic("a token", "A token is a word or a piece of a word.", ("a token", "tokens", "token"), (), ("how long is a token?", "what are tokens?", "tokens or words?", "how many words are [100|1000] tokens?")),
    Topic("acceptance ratio", "The acceptance ratio is the share of drafted tokens that the model keeps.", ("[the|] acceptance ratio", "the share of accepted drafts", "acceptance rate"), (), ("how many drafts are [accepted|kept]?", "what does accepted mean?")),
    Topic("bonus token", "The bonus token is the model's own token, after the drafts that were kept.", ("[the|a] bonus token", "the bonus"), (), ("how many tokens come from one pass at least?", "what if no draft is kept?")),
    Topic("quantisation", "Quantisation stores weights in fewer bits, such as int8 or int4.", ("[quantisation|quantization]", "a quantised model", "low-bit weights", "[a quantized|a low-bit] model"), (), ("what does quantised mean?", "why [quantise|quantize]?")),
    Topic("the weights", "Weights are the model's numbers: they are what takes the memory.", ("[the|] weights", "a parameter", "parameters", "the weights of a model"), (), ("why are models so large?", "what takes so much memory?")),
    Topic("prefill", "Prefill is the reading of the prompt, in blocks of 512 tokens, before the first word.", ("prefill", "prompt reading", "prompt processing", "the prefill"), (), ("why does [the first word|the first token] take so long [to come|with a long prompt|]?", "what happens before the first word?", "time to first token?", "a long prompt is slow, why?")),
    Topic("tok/s", "tok/s is how many tokens a second the last reply had.", ("tok/s", "tokens per second", "tok/s in the [line|figures|stats line]"), (), ("what does tok/s mean?", "how is the speed counted?")),
    Topic("read rate", "It is the rate at which weights were read from the disk.", ("read 1.9 GB/s", "read GB/s in the line", "the read rate", "GB/s in the [line|stats|figures]"), (), ("what does [read|GB/s] mean in the [line|stats]?",)),
    Topic(
        "stats line", "It shows tokens per second, tokens per pass, what was read for each token, and peak memory.",
        ("[the|that] [line|stats line|line of figures|gray line] [after each reply|below the reply|under the replies]", "the numbers [after each reply|below the reply|under the answer]"), (),
        ("what do the [numbers|figures] [after each reply|below the reply|in the line|under your answer] mean?", "how do I read the [stats line|line after a reply|figures]?", "[explain|what are] the [figures|numbers] [below the reply|after a reply]", "0.31 tok/s · 1 tok/cycle · 6.1 GB/tok, what is that?"),
    ),
    Topic("memory plan", "The memory plan says what is pinned and what is streamed, before any weight is read.", ("planning", "engine.plan"), (), ("when is the [plan|memory plan] made?", "how does it decide what to pin?", "who decides which layers are pinned?")),
    Topic("direct reads", "Weights are read past the page cache, so that they take no other memory.", ("O_DIRECT", "direct [reads|I/O]"), (), ("does it use mmap?", "how does it read the disk?", "is the model mapped into memory?")),
    Topic("self-speculation", "Yes: with trained adapters, a model guesses with its first layers and checks with all.", ("self-speculation", "self-speculative decoding"), (), ("can [a|the|my] model [draft for itself|guess its own tokens|be its own drafter]?", "do I need a second model [to draft|]?", "drafting without a second model?")),
    Topic("low-bit drafts", "The substitute is the model itself in fewer bits, kept in memory to guess what the model will say.", ("--drafter substitute", "drafter substitute"), (), ("how does the substitute [draft|work|guess]?", "what does the low-bit copy do [in memory|]?", "why does the substitute draft well?")),
    Topic("why exact", "Each number has the same bits, alone or beside drafts, pinned or streamed. docs/exactness.md says how.", ("docs/exactness.md", "bit-exactness"), (), ("is it [bit-exact|bitwise the same|identical to the last bit|bit for bit the same]?", "bit-exact?", "are the bits the same?", "where is exactness [explained|described|proved]?", "is there a proof [of exactness|]?")),
    Topic("internet", "Only to download a model. --offline forbids even that.", ("the [internet|network] connection",), (), ("do I need [the internet|internet|a connection|a network|WiFi|to be online]?", "does [it|EdgeSpec] need [the internet|internet|a connection|a network]?", "is [internet|a connection] [needed|required]?", "what does it download?", "when does it [go online|use the network|download something]?", "is it [enough|okay] to be online [once|for the download]?", "[must|should] I be [online|connected] [to chat|all the time|while I use it|]?", "[can|does] it [work|chat|run] when the [internet|network|WiFi] is [down|off|gone]?", "does it work [in an airplane|on a train|without WiFi|in the basement] [once the model is here|]?")),
)  # fmt: skip
