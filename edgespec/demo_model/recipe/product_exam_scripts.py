"""Part of the frozen exam (`product_exam`): scripts, platforms and models."""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked

QUESTIONS: tuple[Asked, ...] = (
    # ---- scripts
    # right: Use -p: edgespec chat MODEL -p "your question".
    Asked(
        'scripts',
        (r"(?<![\w-])-p\b|--prompt",),
        ("ask one question from a shell script and exit", "one-shot mode?", "how do I run a single prompt without the interactive chat", "just answer and quit, non interactive",),
        may="--prompt --memory /models --help",
    ),
    # right: Pipe it: cat report.txt | edgespec chat MODEL -p "Sum this up."
    Asked(
        'scripts',
        (r"cat |\||pipe|standard input|stdin|<",),
        ("how do i summarize a text file with it", "feed a document into edgespec from the terminal", "can i pipe stuff into it", "Is there a way to give it a file to read and ask something about it?",),
        may="--prompt --memory --context /models --help",
    ),
    # right: Without -p each line of standard input is a message.  (rarely asked)
    Asked(
        'scripts',
        (r"(each|every|a|one|per) line|line (is|of)|lines|line by line",),
        ("when i pipe text into chat without -p what happens",),
        may="--prompt /models --help",
    ),
    # right: Give generate one prompt a line on standard input: edgespec generate MODEL < prompts.txt.
    Asked(
        'scripts',
        (r"generate|stdin|standard input|one (prompt )?(a|per) line|each line",),
        ("how can i run 500 prompts from a file in one go", "batch processing many prompts?", "prompts.txt has one prompt per line, how do I process it",),
        may="--json --keep-going --prompt /models --help",
    ),
    # right: Use --json: edgespec generate MODEL --json prints one object a reply.
    Asked(
        'scripts',
        (r"--json",),
        ("json output?", "machine readable output for my script", "how do i get results as JSON instead of text",),
        may="--keep-going --prompt /models --help",
    ),
    # right: Use --keep-going; the exit code is then 1.  (rarely asked)
    Asked(
        'scripts',
        (r"--keep-going",),
        ("one bad prompt kills my whole batch, can it skip errors", "go on after a failing prompt",),
        may="--json /models --help",
    ),
    # right: To standard error; only replies go to standard output.
    Asked(
        'scripts',
        (r"standard error|stderr|std err",),
        ("where do the log messages go", "stdout or stderr for the progress lines?", "i redirect with > out.txt, will the stats end up in the file",),
        may="--no-stats --verbose --json /models --help",
    ),
    # right: Replies go to standard output, so redirect it: edgespec generate MODEL -p "..." > out.txt.
    Asked(
        'scripts',
        (r">|standard output|stdout|redirect|tee",),
        ("how to write the generated text to a file", "save output of generate to disk",),
        may="--json --no-stats --prompt /save /models --help",
    ),
    # right: It waits for standard input; add < /dev/null.  (rarely asked)
    Asked(
        'scripts',
        (r"/dev/null|<|standard input|stdin",),
        ("edgespec chat -p hangs forever over ssh", "my systemd service with chat -p never finishes",),
        may="/dev --prompt /models --help",
    ),
    # right: 130.
    Asked(
        'scripts',
        (r"\b130\b",),
        ("exit code after ctrl-c?", "what status does it return when interrupted with Ctrl+C",),
        may="/models --help",
    ),
    # right: 2 is for wrong use, such as a wrong flag.  (rarely asked)
    Asked(
        'scripts',
        (r"\b2\b",),
        ("what exit code does a wrong flag give",),
        may="/models --help",
    ),
    # right: Exit code 2 is for wrong use, such as an unknown option.
    Asked(
        'scripts',
        (r"wrong use|wrongly|usage|(wrong|unknown|bad|misspelt|invalid) (flag|option|argument|command)|misuse",),
        ("it returned 2, what does that mean",),
        may="--help /models",
    ),
    # right: Exit code 1 means that an error was met while working.
    Asked(
        'scripts',
        (r"error|fail|wrong",),
        ("what does exit status 1 mean",),
        may="/models --help",
    ),
    # right: 0 is success, 1 an error while working, 2 wrong use, 130 Ctrl-C.
    Asked(
        'scripts',
        (r"\b0\b", r"\b1\b|\b2\b|\b130\b",),
        ("exit codes", "Which return codes should my script check for?",),
        may="/models --help",
    ),
    # right: Run edgespec --install-completion.
    Asked(
        'scripts',
        (r"--install-completion",),
        ("tab completion?", "how do i get autocomplete for edgespec in zsh", "shell completion setup",),
        may="--show-completion /models --help",
    ),
    # right: No, there is no server yet; use the Python API or the command line.
    Asked(
        'scripts',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|python", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|server|http|\bapi\b|python|command line|port\b|library",),
        ("is there an openai compatible server", "can it serve a model over http", "rest api?", "I'd like to connect Open WebUI to it, which port does it listen on",),
        may="--json --prompt /models --help",
    ),
    # ---- platform
    # right: Yes, install.ps1 sets it up; Windows is written for, but tested only with stand-ins.
    Asked(
        'platform',
        (r"^(?!.*\b(does not|doesn't|cannot|can't|won't) (run|work))", r"windows|install\.ps1|powershell|stand-in|^\W*yes\b.{0,18}$", r"^(?!.*(windows is not (supp|poss)|linux only|only (on )?linux))",),
        ("does it run on windows", "windows 11 ok?", "i only have a windows pc, am i out of luck?",),
        may="--memory /models --help",
    ),
    # right: Yes, on the CPU, also on Apple silicon; it has been tested only with stand-ins there.
    Asked(
        'platform',
        (r"^(?!.*\b(does not|doesn't|cannot|can't|won't) (run|work))", r"\bmac|apple|metal|\bcpu\b|stand-in|^\W*yes\b.{0,18}$", r"^(?!\W*no\b)(?!.*(mac(os)? is not (supp|poss)|linux only|only (on )?linux))",),
        ("mac support?", "can i use edgespec on my macbook air m2", "does it work on macOS",),
        may="--memory /models --help",
    ),
    # right: No, Metal is refused; on a Mac it runs on the CPU.
    Asked(
        'platform',
        (r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|metal|\bcpu\b",),
        ("will it use the gpu of my m3 mac", "does edgespec support Metal / MPS",),
        may="--device /models --help",
    ),
    # right: Linux on x86-64 with the CPU is where everything is tested.
    Asked(
        'platform',
        (r"linux",),
        ("which operating system works best", "on what platform was it actually tested?", "What OS do the developers test on",),
        may="/models --help",
    ),
    # right: CUDA is written, but it has not been run on a GPU yet.
    Asked(
        'platform',
        (r"cuda|gpu", r"not|never|yet|untested|n't",),
        ("does it use my nvidia card", "gpu support??", "I've an RTX 3060 12GB, will edgespec take advantage of it?", "has anyone run this on cuda",),
        may="--device --device-memory /models --help",
    ),
    # right: No, it runs on the CPU.
    Asked(
        'platform',
        (r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|\bcpu\b|no gpu|without (a|any) (gpu|graphics)|not (needed|required|necessary|need)",),
        ("do i need a gpu", "i have no graphics card at all, is that a problem?", "Is a graphics card required for this?",),
        may="--device /models --help",
    ),
    # right: Start it with --device cuda.
    Asked(
        'platform',
        (r"--device cuda|--device",),
        ("how do i tell it to run on the gpu", "select device",),
        may="--device-memory --memory /models --help",
    ),
    # right: Start it with --device cpu.
    Asked(
        'platform',
        (r"--device cpu",),
        ("force cpu", "I've got a GPU but want it to ignore it",),
        may="--device --threads /models --help",
    ),
    # right: No, the devices are the CPU and CUDA only.
    Asked(
        'platform',
        (r"^(?!\W*yes\b)", r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|\bonly\b", r"^\W*(yes|no|nope)\b.{0,18}$|cuda|\bcpu\b|\bamd\b|radeon|rocm|nvidia",),
        ("radeon / rocm?", "does my AMD graphics card work with this",),
        may="--device /models --help",
    ),
    # right: It is not tested there: only Linux on x86-64 is; on ARM the kernels compile, but were not measured.
    Asked(
        'platform',
        (r"untested|not (been )?(tested|measured|run|tried)|n't been|only .*x86|only linux|x86-64|nobody|no one|arm",),
        ("does it work on a jetson orin nano", "jetson?", "can i run this on a raspberry pi 5", "Has it been tried on ARM boards?",),
        may="--memory --device /models --help",
    ),
    # right: No, it is for Linux, macOS and Windows computers.
    Asked(
        'platform',
        (r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|phone|linux|windows|macos|android|computer|\bpcs?\b",),
        ("can i run edgespec on my phone", "android app?", "is there something for the iphone",),
        may="/models --help",
    ),
    # right: Yes, the dial is tested in containers of its size.  (rarely asked)
    Asked(
        'platform',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|container|docker|cgroup|dial|limit",),
        ("does it work inside docker with a memory limit",),
        may="--memory /models --help",
    ),
    # right: Not quite: on macOS the C library may keep freed blocks, so the process can be some tens of MB larger.  (rarely asked)
    Asked(
        'platform',
        (r"tens of mb|some mb|few mb|larger|c library|freed|blocks|(not|less) (quite|as|so)? ?(hard|strict)|^\W*(no|not quite)\b.{0,18}$",),
        ("is the ram limit just as strict on a mac as on linux",),
        may="--memory /models --help",
    ),
    # ---- models
    # right: Llama 2 and 3, Vicuna, Mistral, Qwen2, Qwen2.5 and Qwen3.
    Asked(
        'models',
        (r"llama", r"mistral", r"qwen",),
        ("which models are supported", "what model families can i run with edgespec", "list of compatible architectures?", "what models work",),
        may="/models --help",
    ),
    # right: Yes, it is known: Llama 2/3, Vicuna, Mistral, Qwen2/2.5 and Qwen3 are.
    Asked(
        'models',
        (r"^(?!.*\b(llama|mistral|qwen|vicuna)[^.;]* (is|are) not\b)(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|known|support|llama|qwen|mistral|vicuna",),
        ("does it run llama 3.1", "qwen3?", "can i use vicuna", "will Mistral-7B-Instruct run", "Qwen2.5-7B-Instruct works?",),
        may="--memory --offline /models --help",
    ),
    # right: No, it is not among the known families, which are Llama, Vicuna, Mistral and Qwen.
    Asked(
        'models',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|\bonly\b", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|known|support|famil|llama|qwen|mistral|gemma|\bphi|mixtral|mixture|\bmoe\b|expert|architecture|falcon|deepseek|gpt",),
        ("does it support gemma", "gemma 2 9b?", "can i load phi-3", "Is Microsoft's Phi-4 supported?", "what about mixtral 8x7b", "do mixture of experts models run", "DeepSeek V3?", "gpt-oss 20b on this?", "does falcon work",),
        may="/models --help",
    ),
    # right: Its architecture is not known to EdgeSpec; Llama, Vicuna, Mistral and Qwen models are.
    Asked(
        'models',
        (r"known|support|architecture|famil",),
        ("UnsupportedModelError, what does it mean", "it says the model is not supported, why",),
        may="/models --help",
    ),
    # right: Hugging Face directories or hub ids (safetensors), GGUF files, and packed directories.
    Asked(
        'models',
        (r"hugging ?face|safetensors", r"gguf",),
        ("which file formats does it read", "what formats can a model be in?",),
        may="/models --help",
    ),
    # right: Yes, give the GGUF file as the model.
    Asked(
        'models',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|gguf",),
        ("does it read gguf", "I have a .gguf from llama.cpp lying around, can I use that", "gguf files ok?",),
        may="--memory /models --help",
    ),
    # right: Q8_0, Q4_0, Q4_K, Q5_K and Q6_K, and F16.
    Asked(
        'models',
        (r"q4_k", r"q8_0",),
        ("which gguf quants are supported", "GGUF quantization types that work?",),
        may="/models --help",
    ),
    # right: Yes, Q4_K, Q6_K and Q8_0 among others are multiplied by its own kernels.
    Asked(
        'models',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|q4_k|q8_0|gguf|quant|known|support|kernel",),
        ("does a Q4_K_M file work", "q8_0 ok?",),
        may="/models --help",
    ),
    # right: No, it runs language models: text only.  (rarely asked)
    Asked(
        'models',
        (r"^(?!\W*yes\b)", r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|\bonly\b", r"^\W*(yes|no|nope)\b.{0,18}$|text|language model|image|picture",),
        ("can it look at images", "does it generate pictures?",),
        may="/models --help",
    ),
    # right: Pack it in bf16: edgespec pack MODEL -o DIR --precision bf16.  (rarely asked)
    Asked(
        'models',
        (r"--precision bf16|bf16",),
        ("my f16 model is refused because numbers overflow, what can i do",),
        may="--out /models --help",
    ),
)  # fmt: skip
