"""Topics of models: which run and which do not, their files and sizes, downloads and packing."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_names import families
from edgespec.demo_model.recipe.product_topics import Topic

MOE = "[Mixtral|Mixtral 8x7B|mixtral-8x22b|a mixture of experts|mixture-of-experts models|MoE models|an MoE|MoE|Qwen3-30B-A3B|Qwen MoE|sparse expert models|a model with experts|Llama 4|models with routed experts]"
IMAGES = "[images|pictures|photos|vision models|a vision model|LLaVA|Qwen2-VL|audio|speech|Whisper|Stable Diffusion|image models|multimodal models|a multimodal model|BERT|embedding models|an embedding model|embeddings|text to speech|diffusion models|CLIP|image generation|video]"
QUANTISED = "[AWQ|GPTQ|an AWQ model|a GPTQ model|AWQ checkpoints|GPTQ models|bitsandbytes|a bitsandbytes checkpoint|fp8 checkpoints|an FP8 model|EXL2|exllama models|quantised checkpoints|quantized safetensors|a checkpoint that is already quantised|AWQ or GPTQ|HQQ]"
GOOD = "[Q4_K_M|Q8_0|Q6_K|Q5_K_M|Q4_K_S|Q4_0|a Q4_K_M GGUF|a Q8_0 file|Q4_K|Q5_K|Q4_K_M files|a q4_k_m gguf|Q8 GGUF files|4-bit GGUF files]"
BAD = "[Q2_K|Q3_K_M|IQ2_XS|IQ4_XS|IQ3_S|Q5_0|Q5_1|Q4_1|IQ4_NL|a Q2_K GGUF|IQ quants|a Q3_K file|i-quants|2-bit GGUF files|IQ1_S|MXFP4|TQ1_0|3-bit ggufs|Q3_K_L|IQ models]"
FILES = "[ONNX|an ONNX model|.bin files|pytorch_model.bin|a .pt file|pickle files|TensorRT engines|MLX models|Core ML|TensorFlow models|Keras files|a PyTorch checkpoint|.pth files|ggml files|JAX checkpoints|OpenVINO]"
SMALL = "[on|in|with] [only |just |]{gb} [of RAM|of memory|RAM|memory|]"

TOPICS: tuple[Topic, ...] = (
    Topic(
        "family yes", "Yes. EdgeSpec knows Llama, Vicuna, Mistral, Qwen2 and Qwen3 models.",
        (), (),
        (*families("{known}"), *families("{known}"), "does {known} run on my {machine}?", "is {known} one of the [supported|known] [models|families]?"),
    ),
    Topic(
        "family no", "No, EdgeSpec does not run that one. It knows Llama, Vicuna, Mistral, Qwen2 and Qwen3 models.",
        (),
        ("[run|use|load|try|chat with|start] [a|the|my|] {other} [model|checkpoint|]", "get {other} to [work|run]"),
        (*families("{other}"), *families("{other}"), "does {other} run on my {machine}?", "why [does|can] {other} not [run|work|load]?", "{other} [fails|gives an error|is refused|does not load], why?", "architecture [not supported|is not supported|unsupported], why?", "UnsupportedModelError", "unsupported architecture", "is [every|any] [model|architecture|LLM] supported?", "does it run [all|any|every] [models|LLMs|model on Hugging Face]?", "will you add {other}?", "is {other} one of the [supported|known] [models|families]?"),
    ),
    Topic(
        "not supported", "Other architectures do not run: no Gemma, no Phi, no mixture of experts, no vision models.",
        ("the unsupported models", "the list of unsupported models"), (),
        ("[which|what] [models|families|architectures|kinds of models] [do not run|are not supported|does it not support|can it not run|do not work|are refused|are missing|fail]?", "[what|which models] [can't|cannot|won't|doesn't] [it|EdgeSpec] run?", "are there models [that|which] [it cannot run|do not work|are not supported]?", "[unsupported|missing] [models|architectures|families]?", "list of unsupported models", "is there a model it [refuses|does not support]?", "what does EdgeSpec not [run|support]?"),
    ),
    Topic(
        "moe", "No. Mixture-of-experts models, such as Mixtral, do not run.",
        ("[MoE|mixture-of-experts] support", "MoE"), ("[run|use|load|stream] [a|] [MoE|Mixtral|mixture of experts|mixture-of-experts model]", "stream [only|] the experts [that are needed|]"),
        (*families(MOE), *families(MOE), "are experts [streamed|loaded|supported]?", "what about sparse models?"),
    ),
    Topic(
        "text only", "No. EdgeSpec runs text models only: no images, no sound, no embeddings.",
        ("[image|vision|audio] support",), ("[describe|read|generate|make|send|upload|understand] [an image|a picture|pictures|images|a photo]", "[transcribe|read|make] [speech|audio|sound]", "[get|compute|make] embeddings"),
        (*families(IMAGES), "[can|does] [it|EdgeSpec|this] [see|understand|draw|make|read|generate|handle] [images|pictures|photos|audio|videos|speech]?", "is it only for text?", "is it multimodal?", "[voice|image|audio|speech|vision|picture] [input|output|support]?"),
    ),
    Topic(
        "closed models", "No. GPT, Claude and Gemini cannot be downloaded. EdgeSpec runs open models, such as Llama or Qwen3.",
        (), ("[run|use|load|talk to] [GPT-4|ChatGPT|Claude|Gemini|GPT-5|OpenAI models|GPT-4o] [with EdgeSpec|locally|offline|here|]",),
        ("[can|does|will] [it|EdgeSpec|this] [run|load|use|support|call|work with] [GPT-4|ChatGPT|Claude|Gemini|GPT-5|GPT-4o|an OpenAI model|OpenAI's models]?", "is [ChatGPT|GPT-4|Claude|Gemini|GPT-5] supported?", "can I [run|have|use] [ChatGPT|GPT-4|Claude|Gemini] [at home|locally|on my machine|on my {machine}|with this]?"),
    ),
    Topic(
        "account", "No. It runs here, without an account or a key.",
        ("an API key", "the account"), ("[use it|use EdgeSpec|start] without [an account|registration|a login]",),
        ("do I [need|have] to [register|sign up|log in|subscribe|make an account]?", "do I need [an account|an OpenAI account|an API key|a key|a subscription|a login|a licence key]?", "is [an account|a login|registration|an API key|a subscription] [needed|required]?", "[API key|account|login|registration]?", "where do I [get|enter|put] [the|an|my] [API key|key|password]?"),
    ),
    Topic(
        "quantised checkpoints", "No. AWQ, GPTQ and other quantised checkpoints are refused. Take the plain model, or a GGUF file.",
        (), ("[run|use|load] [an AWQ|a GPTQ|a quantised|an fp8|an already quantised] [model|checkpoint]",),
        (*families(QUANTISED), "the checkpoint is quantised, [what now|and it is refused|why is it refused]?"),
    ),
    Topic(
        "gguf types", "GGUF files in Q8_0, Q6_K, Q5_K, Q4_K and Q4_0 run, and unquantised ones.",
        ("GGUF quantisation",), (),
        ("[which|what] [GGUF|gguf] [types|quantisations|quants|files|variants|formats|bit widths] [are supported|run|can I use|does it read|work|does it know|are there]?", "[which|what] [quant|quantisation|gguf|type of gguf] should I [take|download|choose|get]?", "supported [quants|gguf types|ggml types]?", "is every [GGUF|gguf] [file|type] [supported|read]?"),
    ),
    Topic(
        "gguf yes", "Yes. GGUF files in Q8_0, Q6_K, Q5_K, Q4_K and Q4_0 run.",
        (), (), (*families(GOOD), "[are|can] quantised GGUF files [supported|run]?"),
    ),
    Topic(
        "gguf no", "No, types such as Q2_K and IQ are refused. Take a Q4_K_M, Q6_K or Q8_0 file.",
        (), (), (*families(BAD), "tensor is of type [Q2_K|IQ4_XS|Q3_K|Q5_0], which is not supported", "my gguf [is refused|does not load|fails|is not supported], why?"),
    ),
    Topic(
        "other files", "No. It reads safetensors and GGUF files, no .bin, .pt or ONNX.",
        ("[ONNX|.bin|pickle] support",), ("[load|use|open|run] [a .bin file|an ONNX file|a .pt file|a pickle|pytorch_model.bin]",), families(FILES),
    ),
    Topic(
        "large model", "Yes, but slowly: layers that do not fit are streamed from the disk in every pass.",
        (),
        ("run a {billions} model SMALL".replace("SMALL", SMALL), "run [a|] {billions} [model|] on [my|a] {machine}"),
        tuple(w.replace("SMALL", SMALL) for w in (
            "[can|could|may] [I|it|EdgeSpec|you] [run|use|load|handle|manage] [a|my|] {billions} [model|Llama|Qwen|] SMALL?", "[does|will|would] a {billions} [model|] [run|work|fit] SMALL?", "I [only |just |]have {gb}[ of RAM|], can I [run|use|load] [a|] {billions} [model|]?",
            "is [a|] {billions} [model|] possible SMALL?", "{billions} [model|] SMALL?", "is {gb} [of RAM|of memory|] enough for [a|] {billions} [model|]?", "my {machine} has {gb}, [does|will|can] [a|] {billions} model [run|work|be run]?", "can my {machine} [run|handle] [a|] {billions} [model|]?",
            "[is|would] [a|] {billions} [model|] [be|] too [big|large|much] for {gb}?", "[does|will] [a|] {billions} model really [run|work] SMALL?", "what is the [biggest|largest] model [I can run|it runs|that runs] SMALL?", "can it [really|] run models [larger|bigger] than [RAM|memory|my RAM|the memory]?", "is there a limit to [the model size|how large a model may be]?", "can I run a [huge|very large|giant] model on [a|my] {machine}?",
        )),
    ),
    Topic(
        "large model speed", "The disk sets the pace: to read 100 GB at 2 GB/s takes 50 seconds for each pass.",
        ("the speed of a {billions} model", "the speed of large models"), (),
        ("how [fast|slow|quick] [is|will|would] a {billions} [model|] [be|run|] SMALL?".replace("SMALL", SMALL), "how [fast|slow] [is|would] a {billions} model [be|] [on my {machine}|when it streams|from the disk|]?", "how [many tokens per second|much speed] [do|will|can] I [get|expect] [with|from] a {billions} model?", "how long does [a token|one token|each word|a pass|one pass] take [with a {billions} model|when streaming|from the disk|]?", "what speed [does|can] a {billions} model [have|reach]?", "is a {billions} model [usable|fast enough|slow|any fun] SMALL?".replace("SMALL", SMALL), "how do I [estimate|calculate] the speed [of streaming|before I try|]?"),
    ),
    Topic(
        "fits", "A model that fits is pinned as a whole: nothing is read from the disk while it runs.",
        (), (),
        ("what [if|happens if|happens when] [the|my|a] model [fits|does fit|fits into memory|fits in RAM|is small enough|is smaller than the memory]?", "does it [stream|read the disk] [also|even|] [if|when] the model fits [in memory|]?", "is EdgeSpec [useful|any good|needed|good] [for small models|when the model fits|if the model fits]?", "can I run [a small model|small models], too?", "I have enough [memory|RAM] [for my model|for the whole model|], what then?", "is everything [pinned|in memory] if it fits?"),
    ),
    Topic(
        "first model", "For a start: edgespec chat Qwen/Qwen2.5-7B-Instruct. The model is downloaded.",
        ("[a|an] example", "an example command"), ("[choose|find|pick] [a|my|the right|a good] [first|] model [to begin with|to start with|to try|for the beginning]",),
        ("[which|what] model [should I|do I|would you] [try|take|use|start with|begin with|run] [first|to begin with|for a start|]?", "[which|what] model do you recommend [for me|for a {machine}|]?", "recommend [me|] a model", "[suggest|name] a [good|small|first] model", "a good [first|] model?", "give me an example [command|of a command|with a real model]", "example?", "best model [to start|for my {machine}|]?", "[what|which] is a good model for [my|a] {machine}?", "example with a Hugging Face id?"),
    ),
    Topic(
        "hub id", "A hub id is org/name on Hugging Face, such as Qwen/Qwen3-8B.",
        ("a hub id", "[a|the] Hugging Face id", "org/name", "a model id"), (),
        ("how does a [hub|Hugging Face|model] id look?", "how do I write [the|a] [name|id] of a [Hugging Face|hub] model?", "where do I find the [id|name] of a model?"),
    ),
    Topic(
        "gated", "Accept the model's terms on Hugging Face, then log in with hf auth login or set HF_TOKEN.",
        ("[a|the] gated model", "HF_TOKEN", "[a|the] Hugging Face token"),
        ("[download|use|get|load|access] [a|the] [gated|private|protected|restricted] [model|repository|repo|Llama model]", "[log in to|log into|give my token to|use my token for|set my token for] Hugging Face", "[get|gain] access to [Llama|a gated model|Llama 3]"),
        ("[the|my|this] model is [gated|private|restricted], what now?", "access [denied|to the model is restricted|is refused]", "[403|401|unauthorized|forbidden] [error|] [when I download|from Hugging Face|while downloading|]", "[it|Hugging Face] [says|complains] [that|] the model is gated", "where do I put my [HF|Hugging Face] token?", "[Llama|Mistral] [does not download|cannot be downloaded|wants a login], why?", "do I need [a Hugging Face account|to log in|an HF token|a Hugging Face token]?", "gated model [error|?]"),
    ),
    Topic(
        "model not found", "Check the spelling: a model is org/name on Hugging Face, a directory or a GGUF file.",
        ("the error model not found", "[model not found|not a model directory]"), (),
        ("[it|EdgeSpec|edgespec] [does not find|cannot find|can't find|doesn't find|finds no] [my|the] model", "model not found", "[the|my] model [is not found|was not found|cannot be found|does not exist], [why|what now|what do I do]?", "[it says|error:|] [no such model|model does not exist|neither a directory nor a GGUF file|not a model directory|repository not found]", "why is my model not found?", "[404|not found] [error|] [from Hugging Face|when I load a model|for my model|]", "it says that my directory is not a model"),
    ),
    Topic(
        "download space", "Make room, or set HF_HOME to a folder on a larger disk. What has arrived is kept.",
        ("the error no space left",), ("[resume|continue|restart] [a|the|my] [download|broken download|interrupted download]", "download to [another|a larger|an external] disk"),
        ("[the|my] disk is full", "the disk is full [while downloading|during the download], what now?", "no [space|room] left on [the device|the disk|my disk]", "not enough disk space [for the model|for the download|]", "the download [stopped|broke off|was interrupted|failed|hangs], [what now|is it lost|do I start again|must I begin again]?", "does an interrupted download [go on|continue|start again]?", "download failed"),
    ),
    Topic(
        "disk space", "As much disk as the model has: about 14 GB for 7 billion parameters in bf16.",
        ("the disk space",), (),
        ("how much [disk|disk space|space|storage|room on disk] [do I need|does it need|is needed|does a model take|does a {billions} model need|does it take|is required]?", "how [large|big] [is a model|are the models|is a {billions} model|is the download|are model files] [on disk|]?", "how many gigabytes [has|is|are in] a {billions} model?", "[disk|storage] [space|requirements]?", "does it need [much|a lot of] disk space?", "how big [are|is] [the downloads|the files|a download]?"),
    ),
    Topic(
        "packed size", "On disk, int8 takes about half of bf16, and int4 about a quarter.",
        ("the size of [a packed|an int8|an int4] model",), (),
        ("how [large|big|small] is [a packed|an int8|an int4|a packed int8|the packed|a quantised] [model|copy]?", "how much [smaller|space] is [int8|int4|a packed model]?", "how much [space|disk] does [int8|int4|packing|a substitute] [save|take|need]?", "size of [int8|int4|a packed model]?", "what does [int8|int4] save?", "how much does packing [shrink|save|bring]?"),
    ),
    Topic(
        "int8 quality", "int8 and int4 are a little less exact than the original, but smaller and faster to read.",
        ("the difference between int8 and int4",), (),
        ("[does|do] [int8|int4|8 bits|4 bits|quantisation|a lower precision] [change|harm|worsen|lower|affect|hurt] [the output|the quality|quality|the answers|the text]?", "[is|are] [int8|int4|8 bits|4 bits|a packed int4 model] [exact|worse|lossless|as good|bad|less accurate]?", "how [good|bad|exact] is [int8|int4]?", "[what|which] is better, [int8 or int4|int4 or int8|bf16 or int8]?", "should I [take|use] [int8|int4|bf16|int8 or int4]?", "what do I lose with [int8|int4|fewer bits]?", "int8 or int4?", "quality of [int4|int8]?", "is int8 lossy?"),
    ),
    Topic(
        "pack needed", "No. A safetensors model is streamed in place. Packing is for int8, int4 or a substitute.",
        (), (),
        ("[do I|must I|should I|does one] [need to|have to|always|really|] pack [a|my|the|every] model [first|before I chat|before I run it|]?", "[is|was] packing [needed|necessary|required|a must|mandatory]?", "do I have to [convert|prepare|pack] [a|the|my] model [first|before use|]?", "can I [skip|do without] [packing|pack]?", "is there a [conversion|preparation] step?", "does it work without packing?"),
    ),
    Topic(
        "pack resume", "Run the same command again: it goes on where it stopped.",
        (), ("[resume|continue|go on with] [packing|training|a pack|a training run|an interrupted pack]",),
        ("[packing|training|pack|train] was [interrupted|stopped|killed], [what now|is all lost|do I start again]?", "can [packing|training] be [resumed|interrupted|stopped|continued]?", "what if [packing|training] is [interrupted|killed|stopped]?", "[I stopped|I killed|the power went off during] [the packing|the training|pack|train]", "does [pack|train|packing|training] [go on|resume|continue] after [an interruption|Ctrl-C|a crash]?"),
    ),
    Topic(
        "packed run", "Give its directory as MODEL: edgespec chat DIR.",
        (), ("[run|use|load|start|chat with|open] [a|my|the] packed [model|directory|copy]", "[run|use|chat with] what [pack|edgespec pack] [wrote|made]"),
        ("I packed [a model|it|my model], [what now|how do I use it|and then]?", "[after|what comes after] packing?", "how is a packed model [used|started]?", "where do I give the packed [model|directory]?"),
    ),
    Topic(
        "pack cost", "Packing needs little memory, since it reads and writes in pieces. It checks first that the disk has room.",
        ("the cost of packing", "the memory that packing takes"), (),
        ("how much [memory|RAM] does [packing|pack|edgespec pack|quantising] [need|take|use]?", "[does|will] packing need [much|a lot of|little] [memory|RAM]?", "can I pack a model [that does not fit|larger than memory|that is bigger than my RAM]?", "is packing [slow|fast|expensive]?", "how long does [packing|pack|quantising] take?"),
    ),
    Topic(
        "no template", "A model without a chat template gets a plain transcript, and chat says so.",
        ("[a|the] chat template",), (),
        ("can I chat with a [base model|model that is no chat model|pretrained model]?", "what [if|happens if] [the|a|my] model has no chat template?", "do I need an instruct model?", "base model or instruct model?", "[no|missing] chat template?"),
    ),
    Topic(
        "fine-tune", "No. EdgeSpec runs models, and trains only adapters that draft.",
        ("[LoRA|LoRAs|a LoRA adapter]",), ("[fine-tune|finetune|retrain|train] [a|my|the] [whole model|language model|Llama|model on my data|model with my own data|model itself]", "[load|use|apply|merge] a LoRA"),
        ("[can|does|could] [EdgeSpec|it|this|I] [fine-tune|finetune|train] [models|a model|a language model|LoRAs|it on my documents]?", "is [fine-tuning|finetuning|LoRA|LoRA training] [possible|supported]?", "does training change the model?", "fine-tuning?", "LoRA support?", "can it learn from [me|our chat|my documents|my data]?"),
    ),
    Topic(
        "model licence", "Each model has a licence of its own: see its page on Hugging Face.",
        ("[the licence|the license] of [a|the] model",), (), ("[which|what] [licence|license] [do|does] [the models|models|Llama models|a model|Qwen] have?", "under [which|what] licence [are|is] [the models|Llama|a model]?", "the [licence|license] of [a|the|my] model?", "[is|are] [Llama|Qwen|models|Mistral] [free|open source|allowed at work]?", "may I use [the models|a model|Llama] [commercially|at work|for money]?", "are the models free?", "do models cost [money|anything]?", "is [Llama|a model] free to use?"),
    ),
    Topic(
        "GGUF", "GGUF is the file format of llama.cpp: one file with weights and tokenizer.",
        ("GGUF", "[a|the] GGUF [file|format]", "gguf"), (), ("GGUF or safetensors?", "what does GGUF stand for?"),
    ),
    Topic(
        "safetensors", "safetensors is Hugging Face's file format for weights. EdgeSpec streams such files in place.",
        ("safetensors", "[a|the] safetensors [file|files|format]"), (), ("are safetensors [streamed|read] [in place|]?",),
    ),
)  # fmt: skip
