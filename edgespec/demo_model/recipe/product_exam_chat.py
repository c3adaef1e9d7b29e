"""Part of the frozen exam (`product_exam`): slash commands, system prompts and keys."""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked

QUESTIONS: tuple[Asked, ...] = (
    # ---- slash
    # right: Type /help.
    Asked(
        'slash',
        (r"/help",),
        ("what slash commands are there", "show me the commands in the chat", "is there a cheat sheet inside chat", "list of chat commands?",),
        may="/help /set /system /show /stats /regen /undo /clear /save /load /exit /quit /models --help",
    ),
    # right: Type /undo; it takes the last message and its reply back.
    Asked(
        'slash',
        (r"/undo",),
        ("i made a typo in my last message, can i take it back", "remove the last question and answer", "oops. how to go one step back", "delete my last message",),
        may="/clear /regen /models --help",
    ),
    # right: It takes the last message and its reply back.
    Asked(
        'slash',
        (r"last message|take.* back|message and (its|the) (reply|answer)", r"^(?!.*(whole|all|entire))",),
        ("what does /undo do", "/undo ?",),
        may="/undo /models --help",
    ),
    # right: Type /regen; it answers the last message again with the next seed.
    Asked(
        'slash',
        (r"/regen",),
        ("i don't like that answer, try again", "how can I get another reply to the same message", "regenerate?", "command to redo the answer",),
        may="/set --temperature --seed /undo /models --help",
    ),
    # right: At temperature 0 the reply is always the same; try /set temperature 0.7 first.
    Asked(
        'slash',
        (r"temperature",),
        ("/regen always gives me the identical reply, broken?", "why is the regenerated answer exactly the same as before",),
        may="/set --temperature --seed /regen /models --help",
    ),
    # right: Type /clear; it forgets the conversation.
    Asked(
        'slash',
        (r"/clear",),
        ("how do i start a fresh conversation without quitting", "forget everything we talked about", "wipe the chat", "new chat?", "reset conversation, command",),
        may="/exit /system /undo /models --help",
    ),
    # right: No, /clear keeps the system prompt; /system none removes it.
    Asked(
        'slash',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^\W*(yes|no|nope)\b.{0,18}$|system prompt|/system|keep|kept|stays?|remain",),
        ("does /clear delete the system prompt too", "is my system prompt gone after clear?",),
        may="/clear /system /models --help",
    ),
    # right: Type /save FILE, such as /save chat.json.
    Asked(
        'slash',
        (r"/save",),
        ("how do i save this conversation", "export the chat to a file", "store what we've said so far on disk", "Can I keep a copy of this talk?",),
        may="/load --continue /models --help",
    ),
    # right: Type /load FILE.
    Asked(
        'slash',
        (r"/load",),
        ("how do I open a chat i saved yesterday", "resume from a saved file", "i have a saved conversation in trip.json, how to go on with it",),
        may="/save --continue /models --help",
    ),
    # right: Start with edgespec chat MODEL --continue (-c).
    Asked(
        'slash',
        (r"--continue|(?<![\w-])-c\b",),
        ("how can i continue where i left off", "I closed the terminal, is my last chat lost?", "pick up the last conversation again", "reopen previous session without having saved it",),
        may="--no-history /load /save --memory /models --help",
    ),
    # right: Type /exit or press Ctrl-D.
    Asked(
        'slash',
        (r"/exit|ctrl[-+ ]?d|/quit|/bye",),
        ("how do i get out of here", "quit", "leave the chat?", "exit command", "i'm stuck in the prompt how do I close this",),
        may="/exit /quit /bye /models --help",
    ),
    # right: With /set, such as /set temperature 0.7.
    Asked(
        'slash',
        (r"/set",),
        ("can I change options without restarting the chat", "what's the command for changing a setting inside chat", "how to change max tokens mid conversation",),
        may="--temperature --max-tokens /show /help /models --help",
    ),
    # right: /set without a name shows all options.
    Asked(
        'slash',
        (r"/set|/show",),
        ("show me the current settings", "which sampling values are active in this chat right now?",),
        may="/help /models --help",
    ),
    # right: It changes an option such as temperature, or shows them all.
    Asked(
        'slash',
        (r"option|setting", r"chang|set|adjust|show",),
        ("what is /set for", "/set does what",),
        may="/set --temperature /models --help",
    ),
    # right: Type /set NAME default.  (rarely asked)
    Asked(
        'slash',
        (r"default",),
        ("how to put temperature back to its default in the chat",),
        may="/set --temperature /models --help",
    ),
    # right: Type /stats.
    Asked(
        'slash',
        (r"/stats",),
        ("how do i see the speed of the last reply in detail", "details about the last answer, tokens per second etc", "show measurements",),
        may="/show --verbose --no-stats /models --help",
    ),
    # right: Type /stats off, or start with --no-stats.
    Asked(
        'slash',
        (r"/stats off|--no-stats",),
        ("how to hide the line with numbers after every answer", "that tok/s line is annoying, turn it off", "disable statistics",),
        may="/stats --no-stats /models --help",
    ),
    # right: It shows the last reply's measurements; on and off switch the line after each reply.
    Asked(
        'slash',
        (r"measur|statistic|figures|speed|tok/s|tokens (a|per) second",),
        ("what does /stats show", "/stats?",),
        may="/stats --no-stats /models --help",
    ),
    # right: It shows the model and options; /show plan the memory plan, and /show chat what was said.
    Asked(
        'slash',
        (r"plan|(show|print|list)s?.*(model|options|plan|conversation|chat|said)",),
        ("what's /show",),
        may="/show /models --help",
    ),
    # right: Type /show chat.
    Asked(
        'slash',
        (r"/show chat",),
        ("print the whole conversation so far", "how can i reread what was said earlier in this chat?",),
        may="/show /save /models --help",
    ),
    # right: Type /show.  (rarely asked)
    Asked(
        'slash',
        (r"/show",),
        ("how many context positions have i used up", "which model is loaded right now, is there a command for that",),
        may="/stats /help /models --help",
    ),
    # right: Begin the line with a space, then it is sent as text.  (rarely asked)
    Asked(
        'slash',
        (r"space",),
        ("how do i send a message that begins with a slash", "I need to type /etc/fstab as the first word but it thinks it's a command",),
        may="/help /etc /models --help",
    ),
    # right: There is no such command; /help lists them.
    Asked(
        'slash',
        (r"/help",),
        ("it says there is no command /reset", "chat tells me unknown slash command, what can i type then",),
        may="/help /set /system /show /stats /regen /undo /clear /save /load /exit /quit /reset /models --help",
    ),
    # ---- system
    # right: Start with --system TEXT, or type /system TEXT in the chat.
    Asked(
        'system',
        (r"--system|/system",),
        ("how do i set a system prompt", "make it answer like a pirate the whole time, where do i put that", "I want to give the model a role before the chat starts", "custom instructions?",),
        may="--system-file --system /system /models --help",
    ),
    # right: Use --system-file FILE.
    Asked(
        'system',
        (r"--system-file",),
        ("my system prompt is long and in a text file, how to pass it", "read system prompt from file",),
        may="--system /system /models --help",
    ),
    # right: Type /system none.
    Asked(
        'system',
        (r"/system none",),
        ("how do i remove the system prompt again", "delete system prompt in chat",),
        may="/system /models --help",
    ),
    # right: Type /system without text; it shows the system prompt.
    Asked(
        'system',
        (r"/system",),
        ("can i see what system prompt is active", "print the current system prompt",),
        may="/show /models --help",
    ),
    # right: The model's chat template would leave it out, so it is refused.  (rarely asked)
    Asked(
        'system',
        (r"template",),
        ("why is my system prompt refused for this model",),
        may="--system /system /models --help",
    ),
    # ---- keys
    # right: Press Ctrl-C; what it said so far stays.
    Asked(
        'keys',
        (r"ctrl[-+ ]?c\b|control[- ]c",),
        ("how do i stop it while it's talking", "it keeps rambling, make it shut up", "Interrupt a reply?", "which key cancels the generation",),
        may="/models --help",
    ),
    # right: It stays in the conversation.
    Asked(
        'keys',
        (r"stay|kept|keep|remain|still|is saved|not lost|isn't lost|part of the conversation", r"^(?!.*\b(deleted|thrown away|is lost|are lost))",),
        ("if i press ctrl-c in the middle, is the half reply thrown away", "What happens to a partial answer when I interrupt it?",),
        may="/undo /regen /models --help",
    ),
    # right: Press Alt-Enter or Ctrl-J, or put the message between """ and """.
    Asked(
        'keys',
        (r'alt[-+ ]?enter|ctrl[-+ ]?j|\"\"\"',),
        ("how do i type a message with several lines", "enter sends it right away, how do I get a line break", "multiline input?", "paste a block of code with newlines into the prompt, how", "new line without sending",),
        may="--prompt /models --help",
    ),
    # right: Press Ctrl-G, it opens $EDITOR.
    Asked(
        'keys',
        (r"ctrl[-+ ]?g",),
        ("can I write my message in vim", "open an editor for the prompt",),
        may="/models --help",
    ),
    # right: It leaves the chat.
    Asked(
        'keys',
        (r"leaves? (the |edgespec|it)|leaves?\W*$|exit|quit|ends? (the chat|edgespec)|clos",),
        ("what does ctrl-d do here",),
        may="/exit /models --help",
    ),
    # right: It waits for the next prompt.  (rarely asked)
    Asked(
        'keys',
        (r"wait|next prompt|next message|queue|kept",),
        ("what if i type while the answer is still being written",),
        may="/models --help",
    ),
)  # fmt: skip
