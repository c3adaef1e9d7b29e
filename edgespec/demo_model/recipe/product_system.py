"""Topics of the machine: where EdgeSpec runs, how it gets there, where it keeps files, and what its errors mean."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_names import places
from edgespec.demo_model.recipe.product_topics import Topic

WINDOWS = "[Windows|Windows 11|Windows 10|windows|a Windows PC|a Windows machine|Windows Server|my Windows laptop|Microsoft Windows|Win11]"
MAC = "[macOS|a Mac|my Mac|a MacBook|a MacBook Pro|a MacBook Air|an iMac|a Mac mini|Apple silicon|an M1|an M2|M3|an M4 Mac|a Mac Studio|OS X|mac|my M1 MacBook]"
LINUX = "[Linux|Ubuntu|Debian|Fedora|Arch|Arch Linux|CentOS|Red Hat|openSUSE|a Linux server|Mint|linux|Ubuntu 22.04|Alpine|a Linux box]"
METAL = "[Metal|MPS|the Apple GPU|the GPU of my Mac|the Mac's GPU|an Apple GPU|the neural engine|MLX|mps|the M1's GPU|Apple's GPU]"
OTHER_GPU = "[ROCm|an AMD GPU|AMD cards|an AMD graphics card|a Radeon|an Intel GPU|Intel Arc|Vulkan|OpenCL|DirectML|a TPU|TPUs|an NPU|my NPU|SYCL|an RX 7900|integrated graphics|an FPGA|Intel graphics|oneAPI|HIP]"
ARM = "[a Raspberry Pi|a Raspberry Pi 5|Raspberry Pi 4|a Jetson|a Jetson Orin|Jetson Nano|an Orange Pi|ARM|arm64|an ARM server|aarch64|AWS Graviton|a Rock 5|a single-board computer|an edge device|Jetson AGX Orin|NVIDIA Jetson|an embedded board|Snapdragon|a Pi]"
PHONE = "[a phone|my phone|Android|an iPhone|iOS|an iPad|a tablet|a smartphone|Termux|my mobile|a Pixel|a Samsung phone|Galaxy S24|mobile devices|phones|a smart watch]"
DOCKER = (
    "[Docker|a container|docker|a Docker container|Podman|Kubernetes|a cgroup|containers|a container of 4 GB]"
)
DISKS = "[an NVMe disk|an SSD|a hard disk|a HDD|a USB stick|an SD card|a network drive|NFS|a SATA SSD|an external disk|a slow disk|a fast SSD|RAID|a USB drive|a memory card|eMMC]"
RIVALS = "[Ollama|ollama|vLLM|LM Studio|transformers|accelerate|ExLlama|koboldcpp|text-generation-webui|GPT4All|DeepSpeed|FlexGen|PowerInfer|TensorRT-LLM|SGLang|MLX|mlc-llm|llamafile|Hugging Face transformers|jan]"
LLAMA_CPP = "[llama.cpp|AirLLM|airllm|llama cpp|llamacpp|llama-cpp-python]"

TOPICS: tuple[Topic, ...] = (
    # Where it runs
    Topic(
        "platforms", "It is tested on Linux with x86-64 CPUs. macOS and Windows are written for, but not tested.",
        ("the supported [platforms|systems]", "platform support"), (),
        ("[which|what] [operating systems|platforms|systems|OS|machines] [does it run on|are supported|does EdgeSpec support|can I use|does it need|work]?", "[where|on what] does [it|EdgeSpec] run?", "[Windows, Mac or Linux|Linux or Windows|Mac or Linux|Linux or Mac]?", "is it [cross-platform|portable|only for Linux|Linux only]?", "supported [systems|platforms|operating systems]?", "on [which|what] [platforms|systems] was it tested?", "which OS?"),
    ),
    Topic("Linux", "Yes. Linux on an x86-64 CPU is where it is tested.", ("the Linux version", "Linux support"), (), places(LINUX)),
    Topic(
        "Windows", "Yes, but it is not tested there. On Windows, install.ps1 sets it up.",
        ("install.ps1",), (), (*places(WINDOWS), "does it work [in|with] [PowerShell|Git Bash]?", "PowerShell?", "install.sh does not [run|work] on Windows", "how does it go on Windows?"),
    ),
    Topic("macOS", "Yes, on the CPU, Apple silicon too, but it is not tested there.", ("the [macOS|Mac] version", "[Mac|macOS] support"), (), places(MAC)),
    Topic(
        "Metal", "No. On a Mac it computes on the CPU; Metal is refused.",
        ("Metal support", "--device mps"), ("use [Metal|MPS|the Mac's GPU|the neural engine]",), (*places(METAL), "[does|can] [it|EdgeSpec] use METAL?".replace("METAL", METAL), "--device mps", "why is [mps|Metal] refused?"),
    ),
    Topic(
        "other GPUs", "No, there it computes on the CPU.",
        ("[ROCm|AMD|Vulkan|Intel GPU|NPU|TPU] support",), (), (*places(OTHER_GPU), "[does|can|will] [it|EdgeSpec] [use|support] GPUS?".replace("GPUS", OTHER_GPU), "is GPUS used?".replace("GPUS", OTHER_GPU), "my [graphics card|GPU] is from [AMD|Intel], [does it work|can it be used]?"),
    ),
    Topic(
        "no GPU", "No, the CPU is enough. CUDA is written, but not yet tested on a GPU.",
        (), ("run [it|EdgeSpec|a model] without a [GPU|graphics card]",),
        ("[do I|does it|does EdgeSpec] need a [GPU|graphics card|video card|CUDA card|NVIDIA card]?", "is a [GPU|graphics card] [needed|necessary|required|a must]?", "I have no [GPU|graphics card|NVIDIA card][, does it work|, can I use it|]?", "[must|should] I [buy|have] a [GPU|graphics card]?", "no GPU?", "[does|will|can] it [work|run] without a [GPU|graphics card]?", "CPU only?", "is the CPU enough?"),
    ),
    Topic("ARM", "It may, but ARM machines are not tested. It needs Python and torch.", ("[ARM|Jetson|Raspberry Pi] support",), (), places(ARM)),
    Topic("phone", "No, there is no app for phones. It needs Python and torch.", ("the [phone|mobile|Android] app", "[Android|iOS|phone] support"), (), (*places(PHONE), "is there [an app|a mobile app|an Android app|an iPhone app]?", "app for my phone?")),
    Topic("Docker", "Yes. It keeps to what the container may use, page cache included.", ("[Docker|container] support",), (), (*places(DOCKER), "is there a Docker image?", "does it respect [the container's|a container's|cgroup] [memory|] limit?")),
    Topic(
        "window", "No, there is only the command line, and a Python library.",
        ("the [GUI|web UI|graphical interface|desktop app]",), (), ("[is there|does it have|do you have] [a|an] [GUI|graphical interface|desktop app|window|web UI|user interface|browser interface|VS Code extension|plugin|gui]?", "can I use it in [a browser|the browser|a window|VS Code]?", "[GUI|web UI|graphical interface|desktop app]?", "is it only for the [terminal|command line|shell]?", "do I have to use the [terminal|command line]?", "I do not like the [terminal|command line], is there a window?"),
    ),
    Topic(
        "requirements", "Python 3.10 or later, some memory, and a fast disk for models that do not fit.",
        ("the [requirements|system requirements]",), (),
        ("what [hardware|machine|computer] [do I need|does it need|is needed|do you recommend|is best]?", "[minimum|system|hardware] requirements?", "what [do I need|is needed|is required|does it take] [to run it|to run EdgeSpec|for EdgeSpec]?", "is my {machine} [good enough|fast enough|sufficient|enough]?", "what are the requirements?", "will it run on my {machine}?", "can my {machine} run it?", "does it run on [a|an|my] {machine}?"),
    ),
    Topic(
        "disk kind", "A fast NVMe SSD is best, since the disk's reading rate sets the speed. Slow disks work, slowly.",
        ("the [right|best] [disk|drive|SSD]",), (), (*places(DISKS), "[which|what] [kind of|] [disk|SSD|drive|storage] [is best|do I need|should I use|do you recommend|should I buy]?", "does a [faster|better] [disk|SSD] help?", "do I need an [SSD|NVMe]?", "how fast must [the|my] disk be?", "is my disk too slow?", "does disk speed matter?"),
    ),
    Topic(
        "CPU", "Any x86-64 CPU works. AVX2, AVX-512 or AMX make low-bit models faster.",
        ("[AVX2|AVX-512|AMX|VNNI]", "the [right|best] [CPU|processor]"), (), ("[which|what] [CPU|processor|CPUs|processors] [do I need|is best|does it need|are supported|is good|does it run on]?", "does it [need|use|support|require] [AVX|AVX2|AVX-512|AMX|VNNI]?", "is [AVX2|AVX-512|AMX|a new CPU] [needed|required|used]?", "[does|will] it run on an old [CPU|processor]?", "my CPU [has no AVX|is old], [does it work|is that bad]?", "[AMD|Intel|Ryzen|Xeon|Core i5] [CPU|processor]?"),
    ),
    Topic(
        "--threads", "--threads N sets how many processors compute at a time. Without it, one a core.",
        ("--threads", "the [flag|option] --threads", "[the|] number of threads"), ("[set|limit|change|choose|reduce|lower] [the number of threads|the threads|how many cores it uses|the CPU usage|the number of cores|CPU load]", "[use|take] [fewer|less|all|more|only two|half the] [cores|threads|processors|CPUs]", "[leave|keep] [a core|some CPU|processors] [free|for other programs]"),
        ("how many [threads|cores|processors|CPUs] does it use?", "[it|EdgeSpec] uses [all my cores|all cores|too much CPU|100 % of the CPU|the whole CPU]", "my [computer|{machine}] [is slow|lags|gets hot|is loud|hangs] [while it runs|when it runs|during replies]", "[which|what] [flag|option] sets the [number of threads|cores]?", "does it use [all|several] cores?", "[threads|cores]?", "is it multithreaded?"),
    ),
    Topic(
        "--device-memory", "--device-memory limits the memory on the GPU, as --memory does on the host.",
        ("--device-memory", "the [flag|option] --device-memory", "[VRAM|GPU memory]"), ("[limit|set|restrict|cap] [the VRAM|the GPU memory|VRAM|memory on the GPU|the memory of the graphics card]",),
        ("how much VRAM [do I need|does it use|may it take]?", "[which|what] [flag|option] limits [VRAM|GPU memory]?", "VRAM limit?"),
    ),
    Topic(
        "many GPUs", "A reply uses one device. Only training runs on several, with torchrun.",
        ("multi-GPU", "[a|] GPU cluster"), ("[use|run on|split a model over] [two|several|multiple|four] GPUs", "[run|spread] it on several machines"), ("[does|can] [it|EdgeSpec] [use|run on] [two|several|multiple|many] [GPUs|graphics cards|machines|computers]?", "multi-GPU?", "is [multi-GPU|a cluster|distributed inference] supported?", "multiple GPUs?"),
    ),
    # Installing
    Topic(
        "Python version", "EdgeSpec needs Python 3.10 or later.",
        ("the Python version", "the [right|needed] version of Python"), (), ("[which|what] [Python|Python version|version of Python] [do I need|does it need|is needed|is required|must I have|should I use]?", "does it [work|run] [with|on] [Python 3.9|Python 3.12|Python 3.8|Python 3.13|python 3.10|Python 2|Python 3.11|3.9]?", "is [Python 3.9|Python 3.12|python 3.8|Python 3.13] [okay|supported|enough|too old]?", "my Python is [too old|3.8|3.9]", "[which|what] version of Python?", "do I need Python?", "Python version?", "minimum Python?"),
    ),
    Topic(
        "dependencies", "All it needs is installed with it. torch comes for the CPU, unless there is an NVIDIA GPU.",
        ("torch",), (), ("[which|what] [packages|libraries|dependencies] [does it need|does it install|are installed|does EdgeSpec use|has it]?", "does it [need|use|install|require] [torch|PyTorch|CUDA|numpy|transformers]?", "do I need [to install torch|PyTorch|CUDA|transformers] [first|myself|]?", "what does install.sh [do|install|download]?", "[dependencies|packages]?", "how large is the installation?", "will it download gigabytes of CUDA?"),
    ),
    Topic(
        "pip", "Use ./install.sh: it makes .venv with all that is needed.",
        (".venv", "the virtual environment"), ("install it with [pip|conda|uv|brew|apt|pipx]",),
        ("[can|do] I [pip install|use pip for|install with conda|brew install|apt install] [it|EdgeSpec|edgespec]?", "pip install edgespec[ does not work|]?", "is it on [PyPI|conda|Homebrew|pip]?", "do I need a [virtual environment|venv]?", "is there a [pip|conda|Homebrew|Debian] package?", "does it need [root|sudo|admin rights]?"),
    ),
    Topic(
        "compiler", "Without a C compiler it works, but low-bit weights are several times slower.",
        ("the C compiler", "[a|the] compiler", "gcc"), (), ("do I need [a compiler|gcc|a C compiler|to compile something|clang]?", "is a [compiler|C compiler] [needed|required]?", "install.sh says that there is no [C|] compiler", "[no|missing] C compiler?", "why does [it|install.sh] [compile something|compile|need gcc|want a compiler]?", "I [have|got] no [compiler|gcc|clang][, is that bad|, does it work|]?", "does it [work|run|install] without [a compiler|gcc|a C compiler|clang]?", "what if there is no [compiler|gcc]?", "install without [a compiler|gcc]?", "what are the compiled kernels [for|good for]?"),
    ),
    Topic(
        "update", "Get the new source, and install it again in the same way.",
        (), ("[update|upgrade] [EdgeSpec|it|edgespec|to a new version|to the latest version]", "get [the latest|a newer|the new] version"), ("[is there|how do I get] a newer version?", "[update|upgrade]?", "does it update itself?", "new version?"),
    ),
    Topic(
        "uninstall", "Delete its folder with .venv, and the models in the Hugging Face cache.",
        (), ("[uninstall|remove|deinstall|get rid of|delete] [EdgeSpec|it completely|edgespec|the program|this program|all of it|this software]", "[clean up|remove] [everything|all files] [that EdgeSpec left|of EdgeSpec|it has written]"), ("[uninstall|deinstall|uninstallation]?", "how is EdgeSpec removed?", "I do not want EdgeSpec any more", "what must I delete to remove it?"),
    ),
    Topic(
        "command not found", "Call .venv/bin/edgespec, or activate .venv first.",
        (".venv/bin/edgespec",), ("[call|start|run] edgespec without [.venv/bin|the path|the long path]", "put edgespec [on|into] my PATH"), ("edgespec: command not found", "[the shell|it] [says|does not find] [command not found|edgespec|no such command]", "[edgespec|the command edgespec] is not found", "command not found", "where is the [program|executable|edgespec program|binary]?", "why [is|does] my shell not [know|find] edgespec?", "is not recognized as a command"),
    ),
    Topic(
        "tests", "Run ./install.sh test, then .venv/bin/pytest.",
        ("pytest", "the tests"), ("run the [tests|test suite|unit tests]", "[check|test] [that|whether] the installation [works|is right]"), ("are there tests?", "how is it tested?", "where are the tests?"),
    ),
    Topic(
        "completion", "edgespec --install-completion teaches your shell the commands and options.",
        ("--install-completion", "[shell|tab|command line] completion", "tab completion", "autocomplete"),
        ("[get|install|enable|turn on|set up|have|use|activate] [shell completion|tab completion|completion|autocompletion|autocomplete|command completion|bash completion|zsh completion] [in bash|in zsh|in fish|for my shell|in my shell|]", "complete [commands|options|flags] with Tab [in the shell|in bash|]", "[make|let|teach] [my shell|bash|zsh|fish] [complete edgespec commands|know the options|complete the flags]"),
        ("is there [shell|tab|bash|zsh|fish|] [completion|autocompletion|autocomplete]?", "[bash|zsh|fish|shell|tab] completion?", "can [the shell|bash|zsh|Tab] complete [the options|commands|flags]?", "does [Tab|tab] [work|complete options] in the shell?", "I do not want to type [all|the] options [in full|]"),
    ),
    # Running
    Topic(
        "exit codes", "0 is success, 1 an error while working, 2 wrong use, 130 Ctrl-C.",
        ("[the|an] exit code", "exit codes", "exit code [1|2|130|0]", "the [return code|exit status]", "[return codes|exit status 2]"),
        ("[see|check|find out] [in a script|] [whether|if] it [failed|worked|succeeded]",),
        ("[which|what] [exit codes|return codes|exit status|error codes] [are there|does it have|does it return|does edgespec return|exist|can I get]?", "what does it return [to the shell|on an error|when it fails|after Ctrl-C]?", "edgespec [returned|exited with|ended with|gave me] [1|2|130|code 2|code 1]", "[exit|return] [codes|code|status]?", "why is the exit code [2|1|130]?", "does it [fail|exit] with an error code?", "exits with [1|2|130], why?"),
    ),
    Topic(
        "output", "Replies go to standard output, everything else to standard error.",
        ("stdout", "stderr", "standard [output|error]"), ("[write|redirect|save|send|put] [the reply|the output|replies|an answer] [to|into] [a file|another program|a log file]", "separate [the reply from the messages|replies and messages]"),
        ("where does the [output|reply|text] go?", "what goes to [stdout|stderr|standard error|standard output]?", "can I [redirect|pipe] the [output|replies]?", "are [errors|messages|figures] on [stderr|stdout]?"),
    ),
    Topic(
        "storage", "Typed lines and the last conversation lie in ~/.local/share/edgespec on Linux, models in the Hugging Face cache.",
        ("~/.local/share/edgespec",), ("find [the files of EdgeSpec|my history file|EdgeSpec's files|its data folder|the stored conversations]",),
        ("where does [it|EdgeSpec|the chat] [keep|store|put|save|write] [its files|its data|my data|the last conversation|conversations|the history|things|data]?", "[which|what] [files|folders] does [it|EdgeSpec] [write|create|use|make]?", "where [are|is] [the last conversation|the history file|its data|my conversations|the data folder|the files] [stored|kept|saved|on disk|]?", "what does it [leave|write] on my disk?", "data [folder|directory]?", "in which folder are [conversations|my chats|its files]?"),
    ),
    Topic(
        "EDGESPEC_CACHE", "EDGESPEC_CACHE names the folder where measured rates of disks and memory are remembered.",
        ("EDGESPEC_CACHE", "the cache of [measured|] rates"), ("move the cache of measurements",), ("where are [measured rates|measurements|the disk's rates] [kept|remembered|stored]?", "does it remember [the disk's speed|what it measured]?", "what does it [measure|do] at the first start?", "why is the first start slower?"),
    ),
    Topic(
        "precedence", "A flag goes before the environment, and the environment before edgespec.toml.",
        ("the [precedence|order|priority] of [options|settings]",), (), ("[which|what] [wins|goes first|counts|has precedence|comes first|takes priority], [the flag or the environment|the environment or the file|flag or file|the config file or the flag]?", "[precedence|priority|order] of [options|settings|flags and environment]?", "does [a|the] flag [override|beat|replace] [the environment|edgespec.toml|the config file]?", "what if [an option|--memory] is [in the file and in the environment|set twice]?"),
    ),
    # Memory, more closely
    Topic(
        "units", "8GB, 8G and 8e9 are the same, 8GiB is 2^33 bytes. 512MB works, too.",
        ("[GB and GiB|the units of memory|the units|a SIZE|SIZE|8GiB|512MB]",), ("[write|give|say] [the memory|a size|the limit] in [MB|megabytes|GiB|gigabytes|bytes]",),
        ("[which|what] units [can I use|are there|does it take|does --memory take|are allowed]?", "is [GB|8GB] [1000 or 1024|a power of two|10^9|the same as GiB]?", "what is the difference between [GB and GiB|8GB and 8GiB|MB and MiB]?", "how do I write [a size|half a gigabyte|512 megabytes|the memory size]?", "GB or GiB?", "[MB|GiB|megabytes] [possible|allowed|too]?", "can I [use|write|give] [MB|megabytes|GiB|8G|decimals]?", "does --memory [take|know|accept] [MB|megabytes|GiB|bytes|G]?", "how are sizes written?"),
    ),
    Topic(
        "hard limit", "Yes, on Linux it is a hard cap, and the page cache counts, too.",
        ("the page cache",), (),
        ("is [the limit|the memory limit|the dial|--memory] [hard|strict|exact|reliable|a hard cap|really kept|guaranteed]?", "does it [really|always|ever|] [keep|hold|stick] to [the limit|the memory limit|--memory]?", "[can|will|does] it [ever|] [exceed|go over|pass|use more than] [the limit|the memory limit|--memory]?", "does [the|] [page cache|file cache|disk cache] count?", "[is|are] [page cache|the page cache|caches|the KV cache] [included|counted|part of the limit]?", "can I rely on the memory limit?", "does --memory include [the page cache|everything|the KV cache]?"),
    ),
    Topic(
        "dial too small", "Give a larger --memory: the error names the smallest that works.",
        ("BudgetError",), (),
        ("[it|EdgeSpec] says [that|] [the memory|--memory|the limit|the dial] is too small", "[error|problem]: [memory limit|--memory|memory|dial] too small", "what if [I set|] [--memory|the memory limit|the dial] [is|] too [low|small|little]?", "BudgetError", "[--memory|a limit of] [1GB|500MB|100MB] [is refused|does not work|is too small]", "what is the [smallest|lowest|minimum] [--memory|memory limit|dial]?", "why does it refuse my [memory limit|--memory|dial]?"),
    ),
    Topic(
        "swap", "No swap is needed: layers are read from the model's own files.",
        ("swap",), (), ("does it [swap|use swap|need swap|use virtual memory]?", "do I need [a swap file|swap|swap space|a page file]?", "is it [the same as|better than|just] [swapping|swap|mmap]?", "should I turn swap off?"),
    ),
    Topic(
        "dial and text", "No. Less memory makes it slower, but the text stays the same.",
        (), (), ("does [the memory limit|--memory|less memory|the dial|the amount of memory|little memory] [change|affect|alter|harm] [the output|the text|quality|the answers|the replies]?", "are [answers|replies] [worse|different|the same] with [less|little] memory?", "do I get [other|worse|different] answers with [less|little|4 GB of] memory?", "is quality lost with little memory?"),
    ),
    # Other programs, and where to read
    Topic(
        "llama.cpp", "A 16-bit model that did not fit ran 1.5 to 3.4 times as fast with EdgeSpec: benchmarks/README.md.",
        ("the difference [to|from] [llama.cpp|AirLLM]", "the comparison with [llama.cpp|AirLLM]"), (),
        tuple(w.replace("{x}", LLAMA_CPP) for w in ("how does [it|EdgeSpec] compare [with|to] {x}?", "is [it|EdgeSpec] [faster|better|slower] than {x}?", "[what is|what's|] the difference [to|from|between EdgeSpec and] {x}?", "why not [just|] [use|take] {x}?", "[EdgeSpec|it] or {x}?", "{x} [vs|versus|or] [edgespec|EdgeSpec|this]?", "why [should|would] I use [this|EdgeSpec|it] instead of {x}?", "is it like {x}?", "I use {x}, why should I change?", "compared to {x}?")),
    ),
    Topic(
        "other programs", "EdgeSpec is for models that do not fit in memory, with exactly their own output.",
        ("the difference [to|from] [Ollama|vLLM|LM Studio|transformers|other programs]",), (),
        tuple(w.replace("{x}", RIVALS) for w in ("how does [it|EdgeSpec] compare [with|to] {x}?", "is [it|EdgeSpec] [faster|better|slower] than {x}?", "[what is|what's|] the difference [to|from|between EdgeSpec and] {x}?", "why not [just|] [use|take] {x}?", "[EdgeSpec|it] or {x}?", "{x} [vs|versus|or] [edgespec|EdgeSpec|this]?", "why [should|would] I use [this|EdgeSpec|it] instead of {x}?", "is it like {x}?", "I use {x}, why should I change?", "what makes [it|EdgeSpec] [special|different|better]?", "how is [it|EdgeSpec] different [from the others|from {x}|]?")),
    ),
    Topic(
        "benchmarks", "benchmarks/README.md has the measured figures, beside llama.cpp, accelerate and AirLLM.",
        ("the benchmarks",), ("[see|find|read|repeat|reproduce] [the|your] [benchmarks|benchmark results|measured figures]",), ("[where|what] are the [benchmarks|benchmark results|measurements|published figures]?", "are there [benchmarks|benchmark results|measured figures|comparisons]?", "benchmark results?", "has it been [measured|compared|benchmarked]?"),
    ),
    Topic(
        "documentation", "Read README.md, and docs/cli.md for every command and option.",
        ("the [documentation|docs|manual]", "README.md"), ("[read|find|get|open] [the|] [documentation|docs|manual|user guide]", "[learn|read|find out] more [about EdgeSpec|about it|about this|]"), ("[where|is there] [is|] [the|a|] [documentation|manual|handbook|tutorial|guide]?", "[documentation|docs|manual|tutorial]?", "where [can|do] I [read|learn|find out] [more|more about it|how it works]?", "is there anything to read?"),
    ),
    Topic(
        "written in", "EdgeSpec is written in Python, with kernels in C.",
        ("the programming language of [EdgeSpec|it]",), (), ("[what|which] [programming|] language is [it|EdgeSpec] [written|made|programmed] in?", "is [it|EdgeSpec] [written|made|programmed] in [Rust|C++|Python|C|Go]?", "is it [a Python program|pure Python|C++|a Rust program|compiled]?", "[Python|Rust|C++|Go] or [C|C++|Rust|Python]?", "what is [the code|it|EdgeSpec] written in?", "[is there|does it have] [C|C++|Rust|CUDA] code in it?", "in [what|which] language did [they|you] write [it|EdgeSpec]?"),
    ),
    Topic(
        "damaged", "The file is damaged: download or pack the model again.",
        ("CorruptFileError",), (), ("[the|my|a] [model|file|model file] is [damaged|corrupt|broken|incomplete]", "CorruptFileError", "[it|EdgeSpec] says [that|] [the file|my model|the model] is [damaged|corrupt|broken]", "what do I do with a [damaged|corrupt|broken] [file|model]?", "checksum error", "the [download|file] is [incomplete|cut off]"),
    ),
)  # fmt: skip
