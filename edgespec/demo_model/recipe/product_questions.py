"""What a new user asks about EdgeSpec first, and what makes an answer right.

Written before the demo model was trained on `product`, and never in its data: a generated question that is one of
these, however it is typed, is drawn again (`is_held_out_question`). They change only when the product does.
"""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked, normalised
from edgespec.demo_model.recipe.product_exam import EXAM

ASKED: tuple[Asked, ...] = (
    # The memory limit
    Asked("memory", (r"--memory \d+gb",), ("How do I set the memory limit?", "how do i limit memory", "Where can I change how much RAM it takes?", "which flag controls memory usage?", "What can I do with --memory?", "is there a way to cap the ram?", "How do I tell EdgeSpec how much memory it may use?", "What's the option for maximum memory?", "i want it to use less memory", "how can I make it take up less RAM?", "what's --memory good for", "memory limit?")),
    Asked("memory of 6 GB", ("--memory 6gb",), ("How do I keep it below 6 GB?", "my laptop only has 6 GB, what should I type?", "make it use at most 6 GB of RAM", "Limit to 6 GB, how?")),
    Asked("memory of 12 GB", ("--memory 12gb",), ("I want EdgeSpec to stay under 12 GB.", "can i restrict it to 12 GB of memory?", "Set a limit of 12 GB.")),
    Asked("default memory", ("without --memory", "free"), ("What happens when I don't give --memory?", "How much memory does it take by default?", "what's the default memory limit?")),
    Asked("memory while chatting", ("--memory", "start"), ("Can I change the memory limit during a chat?", "how do I raise the memory limit while it is running?", "does /set memory work?"), "/exit"),
    Asked("how much memory", ("memory", "more", "spare|less it reads"), ("How much memory should I give it?", "how much RAM do I need?", "What is a good memory limit?"), "--memory"),
    # Slash commands
    Asked("/help", ("/help", "command"), ("What does /help do?", "which slash commands exist?", "How do I see everything I can type in the chat?", "list of chat commands?", "where do i find the commands I can use here", "What is /help for?")),
    Asked("/stats", ("/stats", "last reply|figures"), ("What does /stats do?", "how do I see how fast the last answer was?", "Where are the numbers of the last reply?", "explain /stats", "what's /stats for?", "how can i see tokens per second in the chat?", "Which command shows the measurements of a reply?")),
    Asked("/stats off", ("/stats off|--no-stats",), ("How do I get rid of the line after every answer?", "turn off the stats line", "hide the numbers below each reply"), "/stats --no-stats"),
    Asked("/show", ("/show", "model"), ("What does /show do?", "which model am I running right now?", "How can I see the current settings?", "what is /show good for", "Explain the /show command.")),
    Asked("/show plan", ("/show plan", "memory plan"), ("How do I see the memory plan?", "what does /show plan print?", "Where can I see which layers are pinned?", "show me how the memory is used")),
    Asked("/show chat", ("/show chat", "said"), ("How can I read again what we said?", "what does /show chat do", "print the whole conversation so far, which command?")),
    Asked("/set", ("/set ", "option"), ("What does /set do?", "How do I change an option without leaving the chat?", "change settings during the chat?", "what is /set for", "Can I modify a setting while chatting?")),
    Asked("/set default", ("/set \\w+ default",), ("How do I reset an option to its default?", "undo a /set, how?", "get the default temperature back"), "/set"),
    Asked("/system", ("/system", "system prompt"), ("What does /system do?", "How do I give the model a system prompt?", "how can i change your instructions", "what is the /system command", "How do I remove the system prompt?", "Where do I put a system message?", "set a persona for the whole chat, how?")),
    Asked("/save", ("/save", "file"), ("What does /save do?", "How do I keep this conversation?", "can I store our chat on disk?", "how to save a chat", "export this conversation", "What is /save used for?")),
    Asked("/load", ("/load", "conversation"), ("What does /load do?", "How do I open a saved chat?", "how can I get back a conversation from a file?", "what's /load?", "import an old conversation"), "/save"),
    Asked("/regen", ("/regen", "again"), ("What does /regen do?", "How do I get another answer to the same question?", "retry the last reply?", "I don't like this answer, can you try once more?", "what is /regen", "which command regenerates a reply?"), "/set"),
    Asked("/clear", ("/clear", "forget"), ("What does /clear do?", "How do I start over?", "how can i wipe this conversation", "reset the chat please, how does that go?", "what is /clear for?", "Make the model forget what I said.", "does /clear keep the system prompt?")),
    Asked("/undo", ("/undo", "take|remove"), ("What does /undo do?", "How do I take back my last message?", "I made a mistake in my question, can I revoke it?", "how do i undo", "remove the last question and answer", "explain /undo")),
    Asked("/exit", ("/exit", "leave"), ("What does /exit do?", "How do I quit?", "how do i get out of here", "close the chat", "Which key ends the program?", "what does Ctrl-D do?", "how can I end this session?")),
    Asked("Ctrl-C", ("ctrl-c", "stop"), ("How do I make you stop talking?", "what does Ctrl-C do?", "the answer is too long, how do I abort it?", "interrupt a running reply", "does ctrl-c quit the chat?")),
    Asked("new line", ("alt-enter|ctrl-j", "line"), ("How do I type several lines?", "how can I insert a line break in my message?", "enter sends the message but I want a new line")),
    Asked("editor", ("ctrl-g", "editor"), ("Can I write my message in an editor?", "what does Ctrl-G do?", "how do I open vim for a long prompt?")),
    # Commands
    Asked("chat", ("edgespec chat", "talk"), ("What is edgespec chat good for?", "what's the chat command for?", "how do I talk to a model from the command line?", "How do I begin a chat?", "explain the command edgespec chat")),
    Asked("real model", ("edgespec chat model", "hugging face|directory|gguf"), ("How do I use a real model instead of this demo?", "how can I chat with a bigger model?", "I want to run Llama, how?", "you are dumb, how do I get a better model?", "run my own model")),
    Asked("generate", ("edgespec generate", "text"), ("What is edgespec generate good for?", "what is the generate command for", "How do I let a model continue my text?", "how to complete text from the shell", "when would I use generate?")),
    Asked("pack", ("edgespec pack", "write|copy|smaller"), ("What is edgespec pack good for?", "what's the pack command for?", "How do I quantize a model?", "how can i make my model smaller", "convert a model to int8, how?", "when should I pack a model?"), "--precision"),
    Asked("pack --verify", ("--verify", "check"), ("How do I check that a packed model is intact?", "what does pack --verify do?", "is my packed model damaged?")),
    Asked("pack --substitute", ("--substitute", "copy"), ("What does pack --substitute do?", "How do I make a low-bit copy that drafts?", "what is a substitute?")),
    Asked("bench", ("edgespec bench", "measure"), ("when do I use edgespec bench?", "what is the bench command good for?", "How do I measure the speed of my model?", "benchmark my machine", "how many tokens per second will I get, how do I find out?")),
    Asked("train", ("edgespec train", "adapter"), ("What is edgespec train good for?", "what's the train command for?", "How do I train adapters for my model?", "can i train a drafter myself?", "what do I need to make the cascade for another model"), "--data --out"),
    Asked("commands", ("chat", "generate", "pack", "bench", "train"), ("Which commands does edgespec offer?", "what can the edgespec program do on the command line?", "show all edgespec commands", "which subcommands are there?", "where do I find all the options of a command?"), "--help"),
    Asked("server", ("no server",), ("Is there an HTTP server?", "can EdgeSpec serve an OpenAI API?")),
    # Flags
    Asked("--drafter", ("--drafter", "draft"), ("What does --drafter do?", "how do I choose the drafter?", "which drafters are there?", "what are the values of --drafter?", "select another drafter")),
    Asked("--drafter none", ("--drafter none",), ("How do I run without drafts?", "disable speculative decoding", "switch the drafts off, how?")),
    Asked("--draft-model", ("--draft-model", "small"), ("What does --draft-model do?", "how do I let a small model draft for a big one?", "can I use a second model as the drafter?")),
    Asked("--adapters", ("--adapters", "train cascade"), ("What is --adapters for?", "how do I use the adapters that I trained?", "where do I pass the trained cascade?")),
    Asked("--temperature", ("--temperature", "random|likeliest"), ("What is the use of --temperature?", "how do I get more creative answers?", "why is the reply always the same?", "make the answers more random", "what is temperature"), "/set"),
    Asked("--top-p", ("--top-p", "likeliest"), ("What does --top-p do?", "how do I use top-k sampling?", "what is --min-p"), "--top-k --min-p"),
    Asked("--seed", ("--seed", "same"), ("why would I set --seed?", "how do I make sampled replies reproducible?", "same answer every time with sampling?")),
    Asked("--max-tokens", ("--max-tokens", "length|long"), ("What does --max-tokens do?", "how do I limit how long the replies are?", "answers are too long, can I shorten them?", "what is the flag for the maximum number of tokens", "restrict the reply to 50 tokens")),
    Asked("--stop", ("--stop", "end"), ("What does --stop do?", "how do I end a reply at a certain word?")),
    Asked("--context", ("--context", "token|position"), ("When do I need --context?", "how do I make the context longer?", "how do I set the context length?", "which option sets the context size?")),
    Asked("--precision", ("--precision", "int8", "int4"), ("What can --precision be?", "which precisions are there?", "how do I run a model in 4 bits?", "can it use int8?")),
    Asked("--resident-layers", ("--resident-layers", "layers"), ("What does --resident-layers do?", "how do I decide how many layers stay in memory?")),
    Asked("--device", ("cpu", "cuda"), ("What does --device do?", "does it use my GPU?", "can i run it on an nvidia card?"), "--device"),
    Asked("--tree-nodes", ("--tree-nodes", "draft"), ("What does --tree-nodes do?", "how do I set the size of the draft tree?")),
    Asked("--acceptance", ("--acceptance", "typical", "lossy"), ("What can I choose with --acceptance?", "which acceptance rules are there?")),
    Asked("--continue", ("--continue", "last conversation"), ("What does --continue do?", "how do I pick up where I left off yesterday?", "what is edgespec chat -c?", "resume my last chat", "can I go on with the previous conversation?")),
    Asked("--system-file", ("--system-file", "file"), ("What does --system-file do?", "can the system prompt come from a file?", "how do I load a long system prompt?")),
    Asked("--offline", ("--offline", "download"), ("What does --offline do?", "how do I forbid downloads?", "make sure it does not go online")),
    Asked("--verbose", ("--verbose", "memory"), ("What does --verbose do?", "what is -v for?", "how do I see predicted and measured memory after each answer?")),
    Asked("--show-drafts", ("--show-drafts", "draft"), ("What does --show-drafts do?", "how do I see which words were drafted?", "can the chat mark the drafted tokens?")),
    Asked("--json", ("--json",), ("What does --json do?", "I need machine-readable output", "print the results as JSON, how?")),
    Asked("one message", (r"edgespec chat model -p", "one message|leaves"), ("How do I ask just one question from the shell?", "what does chat -p do?", "can I get one answer without an interactive chat?")),
    Asked("pipe", (r"\| edgespec chat",), ("How do I let it summarise a file?", "can I pipe a file into it?", "how do i ask about the contents of a text file")),
    Asked("history", ("--no-history",), ("Does it remember what I type?", "what does --no-history do?", "how do I turn off the input history?")),
    Asked("environment", ("edgespec_memory", "edgespec.toml"), ("Can I put the options in a config file?", "which environment variables are there?", "how do I make --memory 8GB permanent?")),
    Asked("Python", ("edgespec.load",), ("How do I use EdgeSpec from Python?", "is there a python api?", "call it from my own program")),
    Asked("version", ("--version",), ("Which version do I have?", "how do I see the version number?")),
    # What it is and how it works
    Asked("EdgeSpec", ("larger than the memory",), ("What is EdgeSpec?", "what is this program for?", "explain edgespec in one sentence", "What does this project do?", "why would I use EdgeSpec?", "what's edgespec")),
    Asked("models", ("hugging face", "gguf"), ("Where do the models come from?", "how do I get a model?", "which file formats does it read?", "can I load a gguf?", "what can I give as MODEL?")),
    Asked("families", ("llama", "mistral", "qwen"), ("Which model families work?",)),
    Asked("family yes", ("llama", "mistral", "qwen"), ("does it run Qwen?", "is Mistral supported?")),
    Asked("downloads", ("hf_home",), ("Where are downloaded models stored?", "in which folder do the downloads end up?")),
    Asked("drafts", ("guess", "check"), ("What are drafts?", "what does drafting mean?", "how do drafts work?", "why are tokens drafted?", "what is a drafted token")),
    Asked("drafter", ("drafter", "propose|guess", "check"), ("what's a drafter good for?", "what's the job of the drafter?", "define drafter")),
    Asked("exact", ("^yes", "exact"), ("Is the output really the same as the model's?", "do drafts change the answer?", "is it lossless?", "do I lose quality?", "are the replies exactly those of the full model?")),
    Asked("how exact", ("check", "throw"), ("How can drafting be exact?", "how does it stay lossless?", "why do drafts not change the text?", "what guarantees that the output is exact?")),
    Asked("slow", ("memory", "int8", "draft"), ("Why is it so slow?", "How do I make it faster?", "what can I do about the speed?", "it takes forever to answer", "speed up my model"), "--memory"),
    Asked("does not fit", ("stream", "not fit|larger than the memory"), ("What if the model does not fit in memory?", "my model is bigger than my RAM", "out of memory, what now?", "the model is too large for my computer"), "--memory"),
    Asked("large model", ("stream", "not fit|larger than the memory"), ("can I run a 70B model on 8 GB?",), "--memory"),
    Asked("streaming", ("layers", "read", "flash"), ("What is streaming?", "what happens when layers are streamed?", "why does it read from the disk all the time?")),
    Asked("disk wear", ("reads", "wear"), ("Does it wear out my SSD?", "will streaming damage my disk?")),
    Asked("pinned", ("pinned", "stay in memory"), ("What are pinned layers?", "what does pinned mean?")),
    Asked("ring", ("buffer",), ("What is this ring?", "why is there a ring buffer?")),
    Asked("target", ("target is|large model", "output|checks"), ("which model is the target?", "who is the target?")),
    Asked("cascade", ("layers draft",), ("What's the idea of the cascade?", "how does the cascade draft?", "explain cascade")),
    Asked("speculative decoding", ("draft|guess", "check", "together|at once|one pass"), ("how does speculative decoding help?", "what is speculation good for?", "explain speculative decoding to me")),
    Asked("ngram", ("same words",), ("What's an n-gram drafter?", "how do n-grams draft?")),
    Asked("tok/cycle", ("tok", "one pass", "yields|gives"), ("What does tok/cycle mean?", "what are tokens per cycle?", "explain tok/cycle in the stats line")),
    Asked("peak", ("peak", "most memory"), ("What does peak mean in the stats?", "what is peak memory?")),
    Asked("private", ("your machine",), ("Do you send my messages anywhere?", "is my data private?", "does anything go to the cloud?")),
    Asked("licence", ("mit",), ("Which license does it have?", "is edgespec open source?", "may I use it for free?")),
    Asked("install", ("install.sh",), ("How do I install EdgeSpec?", "what do I need to run to set it up?")),
    Asked("demo", ("demo model", "wrong|larger|real"), ("Why are your answers so bad?", "are you ChatGPT?", "how good are you?")),
)  # fmt: skip
QUESTIONS: tuple[tuple[str, Asked], ...] = tuple((text, asked) for asked in ASKED for text in asked.questions)

_HELD_OUT = frozenset(normalised(text) for asked in (*ASKED, *EXAM) for text in asked.questions)


def is_held_out_question(question: str) -> bool:
    """Whether training may not see this question: one of these, or one of the exam's (`product_exam`)."""
    return normalised(question) in _HELD_OUT
