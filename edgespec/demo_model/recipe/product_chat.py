"""Topics of the chat: its slash commands and its keys."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.product_topics import Topic

CHAT = "[chat|conversation|talk|dialogue|session]"
REPLY = "[reply|answer|response]"
QUESTION = "[message|question|input|prompt|line|turn]"

TOPICS: tuple[Topic, ...] = (
    Topic(
        "/help", "/help lists all commands of the chat.",
        ("/help", "the [help|/help] command", "/h", "/?"),
        ("[see|list|show|find|print|get|view|read] [all|the|every|] [slash|chat|available|possible|] [command|commands] [here|in the chat|of the chat|that I can use|]", "[see|learn|find out|know] what I can [type|enter|write|use|do|say] [here|in the chat|in this chat]", "get [some|] help [in the chat|with the chat|with the commands|here]", "find the slash commands", "use slash commands"),
        ("[which|what] [slash commands|chat commands|commands] [are there|can I use|do you have|are available|exist|do I have] [in the chat|in a chat|here|while chatting|]?", "[what|which] commands [begin|start] with a slash?", "[is there|where is] a [help|list of commands|list of slash commands|help page] [in the chat|here|]?", "[list|name|tell me|show|give me] [the|all|all the|your|] [slash commands|chat commands|commands of the chat|commands in the chat|commands for the chat]", "what can I [type|enter|write] [here|in the chat|with a slash]?", "slash commands", "I do not know the [chat|slash] commands", "help with the chat commands", "how do the slash commands work?", "commands here?", "[where|how] do I [find|see|get|read] [the|a list of|all] [commands|slash commands|chat commands]?", "[everything|all] [that I can|I can] [type|do|enter|use] [here|in this chat]", "list commands", "[see|show me] what can be [typed|entered|done] here"),
    ),
    Topic(
        "/stats", "/stats shows the figures of the last reply. /stats on and /stats off switch the line after each reply.",
        ("/stats", "the [stats|/stats|statistics] command", "/stats on", "stats", "[the|these] [figures|measurements]"),
        ("[see|show|get|find|view|print|read|look at] the [stats|statistics|figures|numbers|measurements|speed|details|timing|metrics] [of|for] the [last|latest|previous] {r}".replace("{r}", REPLY), "[see|know|find out|check|measure] how [fast|quick|slow] [the last|this|that|your last|the previous|your] {r} [was|came]".replace("{r}", REPLY), "[see|get|show|check] [the|] [tokens per second|tok/s|reading rate|speed|performance|statistics|measurements] [in the chat|here|while chatting|of the chat|in this chat]", "[turn on|switch on|enable|bring back] the [stats|statistics|figures|line with the figures] [after each reply|]"),
        ("[which|what] command [shows|prints|gives|displays] the [stats|statistics|figures|speed|numbers|measurements|performance]?", "how [fast|quick] was [the last|that|this|your last] {r}?".replace("{r}", REPLY), "how many tokens per second [was that|did I get|did you make|do you do|are you making]?", "[where|how] do I [see|find] the [figures|stats|statistics|numbers|measurements|speed] [of a reply|of the last reply|after a reply|]?", "statistics of the last reply?", "show the figures", "where are the [stats|figures|statistics]?", "[the last reply's|last reply's] [figures|speed|measurements]?", "tokens per second in this chat?"),
    ),
    Topic(
        "/stats off", "/stats off leaves out the line after each reply, and so does the flag --no-stats.",
        ("/stats off", "--no-stats", "the [flag|option] --no-stats"),
        ("[hide|remove|turn off|switch off|drop|disable|suppress|stop|leave out|get rid of|silence|stop printing] the [stats|statistics|figures|numbers|line|line of numbers|stats line|line with the speed|line of figures|tokens per second] [after each reply|after every reply|under the replies|below the answers|under each answer|below every reply|at the end of each answer|]",),
        ("I do not [want|need|like] [the|that|this] [stats|line|numbers|figures|statistics|stats line] [after each reply|after the answers|below the answer|under every reply|]", "no [stats|figures|statistics|numbers] [please|]", "the [line|numbers|figures|stats] after [each|every] [reply|answer] [annoys|disturbs|bothers] me", "can the [stats|numbers|line below the reply|figures] go away?", "[stats|figures] off", "without the stats line"),
    ),
    Topic(
        "/show", "/show shows the model and its options. /show plan shows the memory plan, /show chat what was said.",
        ("/show", "the [show|/show] command"),
        ("[see|show|find out|know|check|print|list] [which|what] [model|settings|options] [is running|am I using|is used|are set|are active|I am talking to|is loaded|is in use]", "[see|show|check|list|print|view|inspect|look at] [my|the|all|the current|the present] [options|settings|configuration|values] [of this chat|in the chat|now|that are set|]", "[see|check|find out] [what is set|how the chat is set up|how many positions are in use|how full the context is]"),
        ("[what|which] [options|settings] are [set|active|in use|on] [now|right now|]?", "[what|which] model [is this chat using|is loaded|is in use|do I use here|is running]?", "where [are|do I see] [my|the] [settings|options|current options]?", "what is [the current|my] [temperature|setting|configuration] [now|right now|]?", "how much of the context is used?", "show the [options|settings|model|model and the options]", "current settings?"),
    ),
    Topic(
        "/show plan", "/show plan shows the memory plan: which layers are pinned and which are streamed.",
        ("/show plan", "the command /show plan", "the [memory plan|plan]", "a memory plan"),
        ("[see|show|view|print|check|read|look at|inspect] [the|your|its] [memory plan|plan|plan of the memory|layout of memory|memory layout|memory use]", "[see|find out|know|check] [which|how many|what] layers [are|get] [pinned|streamed|kept|in memory|read from disk|in RAM]", "[see|find out|know] [how|where|for what] [memory|the memory|my memory|RAM|the RAM] is [used|spent|shared|divided|given out]", "see who [owns|uses|takes] [the|every byte of|] memory"),
        ("[which|how many|what] layers are [pinned|streamed|in memory|kept in memory|read from flash|in RAM]?", "where does the memory go?", "what is the memory used for?", "who [uses|takes|owns] the memory?", "what is in memory [now|right now|]?", "plan of the memory?", "[show|print] the plan", "where [can I see|do I see|is shown|do I find] [which|how many|what] layers are [streamed|in memory|kept|pinned or streamed|in RAM]?", "show me the [memory plan|plan|layout of the memory]", "where is the [memory plan|plan]?"),
    ),
    Topic(
        "/show chat", "/show chat shows what was said so far.",
        ("/show chat", "the command /show chat"),
        ("[see|show|read|print|view|list|look at|repeat|display] [the|our|this|my|all of the|the whole|the entire|the full] {c} [so far|again|up to now|from the start|]".replace("{c}", CHAT), "[see|read|look up|find|show|print] [again|] what [was said|we said|I said|I asked|you said|we talked about|has been said] [so far|before|again|earlier|up to now|]", "[see|read|scroll through] [the|all|earlier|old|my earlier|previous] [messages|turns|questions and answers|replies] [again|of this chat|]", "read [once more|again] what [you said|we wrote|we have said|I wrote]", "scroll back"),
        ("what [did we say|have we said|was said|did I ask|have I asked|did I say] [so far|before|up to now|earlier]?", "what did we talk about?", "show [me|] [all messages|our messages|the earlier messages|the conversation|our talk]", "transcript [please|of the chat|]", "where is the transcript?", "print what we said", "print [our|the full|the entire] [conversation|chat|talk], [how|which command]?", "[which|what] command [prints|shows] [what was said|the conversation|the whole chat|our messages]?"),
    ),
    Topic(
        "/set", "/set changes an option in the chat, for example /set temperature 0.7.",
        ("/set", "the [set|/set] command"),
        ("[change|set|adjust|modify|alter|edit|switch] [an option|options|a setting|settings|the settings|the options|a value|the sampling options|some settings] [in the chat|during the chat|while chatting|here|now|in a running chat|while it runs|on the fly|without a restart|without starting again|from inside the chat|]", "[set|change|adjust|raise|lower] the [temperature|top-p|top-k|seed|max-tokens|stop text] [in the chat|during the chat|here|while chatting|without leaving|inside a chat|in a running chat]", "[change|set|adjust] [an option|a setting|the settings] [and stay in the chat|without ending the chat|without closing the chat|without quitting]"),
        ("[which|what] command changes [an option|a setting|the temperature|options|settings]?", "can [options|settings|the options|the settings] be changed [in the chat|while chatting|here|during a chat]?", "do I have to restart to change [a setting|an option|the temperature]?", "option changes in the chat?", "where do I set options in the chat?", "I [want|need] other settings [now|in this chat|]", "[change|changing] [options|a setting|settings] [during a chat|while chatting|in here]?", "[change|set] [something|options|a setting] [without leaving|without a restart|and stay here]?"),
    ),
    Topic(
        "/set default", "/set NAME default puts an option back, for example /set temperature default.",
        ("/set temperature default", "default in /set", "/set NAME default", "a /set default"),
        ("[reset|restore|put back|set back|turn back|clear|unset|remove|revert] [an option|a setting|the temperature|the option|the settings|my options|the seed|the top-p|a /set|max-tokens] [to its default|to the default|to default|to normal|to the original value|to how it was|]", "[go back|return] to the default [temperature|value|option|settings|options]", "undo [a change of an option|a setting|my change of the temperature|what I set with /set]", "get [the original|the usual|the normal|the default] [temperature|settings|value|option] [back|again]", "[undo|revert|take back] [the last|my|a] /set", "[reset|restore] [all options|every option|the sampling options]"),
        ("how does [an option|the temperature|a setting] become default again?", "what resets an option?", "default [value|setting|temperature] again", "back to [default|the defaults|the default settings]", "/set back, how?", "how is a /set undone?", "[undo|reverse|cancel] [a|one|my last] /set [command|]", "how do I [undo|reverse|take back] a /set?"),
    ),
    Topic(
        "/system", "/system TEXT sets the system prompt. /system none removes it.",
        ("/system", "the [system|/system] command", "[a|the] system prompt", "the system message", "/system none"),
        ("[set|change|give|write|use|add|edit|enter|put in|see|show|replace|define|specify] [a|the|another|my own|a new] [system prompt|system message|system text|instruction for the model|persona|role for the model]", "[remove|delete|drop|clear|get rid of|take away|switch off|unset] the [system prompt|system message|persona|system text]", "[tell|instruct|make] [you|the model|it] [how to behave|to play a role|who to be|to be a pirate|how to answer|to answer in a certain way|to behave differently]", "give [you|the model] [instructions|a role|a character|a personality|rules|general instructions] [for the whole conversation|for all replies|at the start|]", "change [your behaviour|how you answer|the way you reply|your character|your role]", "[set|give|choose|invent] a [persona|role|character] for [the chat|this chat|you|the model]"),
        ("what is my system prompt?", "[is there|do I have|can I have] a system prompt?", "where [do I write|do I put|goes|is] the system prompt?", "can you [play a role|be a pirate|be someone else|behave differently|follow instructions for all replies]?", "how do system prompts work?", "which command sets the system [prompt|message]?", "no system prompt [any more|please]", "[persona|role|character] for [the chat|this chat|you|the model], how?", "[a|my] [persona|character|role], where do I [set|write|put] it?", "instructions for the whole chat?"),
    ),
    Topic(
        "/save", "/save FILE writes the conversation to a file.",
        ("/save", "the [save|/save] command"),
        ("[save|store|write|export|keep|preserve|archive|record|back up] [the|this|our|my|a|the whole] {c} [to a file|in a file|to disk|on disk|for later|as a file|on my disk|]".replace("{c}", CHAT), "[save|store|keep|write down|export] [what we said|what was said|everything we said|our messages|this talk|it all|these answers] [in a file|to a file|for later|on disk|]", "put [this|the] {c} [into|in] a file".replace("{c}", CHAT)),
        ("[can|could] [the|this|our] {c} be [saved|stored|kept|exported|written to a file]?".replace("{c}", CHAT), "which command [saves|stores|exports|writes] the {c}?".replace("{c}", CHAT), "I do not want to lose [this|our|the] {c}".replace("{c}", CHAT), "saving the {c}?".replace("{c}", CHAT)),
    ),
    Topic(
        "/load", "/load FILE goes on with a saved conversation.",
        ("/load", "the [load|/load] command"),
        ("[load|open|read|restore|import|reopen|bring back|get back|get|reload|retrieve|fetch] [a|the|my|an old|an earlier|a stored|my saved|a saved|the saved|the old] {c} [from a file|from disk|that I saved|that I stored|from the disk|again|]".replace("{c}", CHAT), "[go on|continue|proceed] [with|from] [a|the|my] [saved|stored|exported|written] {c} [in a file|]".replace("{c}", CHAT), "[open|read|load|use] [a|the|my] file [with a conversation|that /save wrote|with our chat|of a saved chat]", "[import|bring in] [a|my] [conversation|chat|saved chat|file]"),
        ("[can|could] a [saved|stored] {c} be [loaded|opened|restored|continued]?".replace("{c}", CHAT), "which command [loads|opens|restores|reads] a [saved|stored] {c}?".replace("{c}", CHAT), "I saved a {c}, how do I [open|load|get|read|use] it [again|back|]?".replace("{c}", CHAT), "where is my saved {c}?".replace("{c}", CHAT), "loading a {c}?".replace("{c}", CHAT), "[import|open|load|restore] [a|my|the] [saved|stored|earlier] [conversation|chat]"),
    ),
    Topic(
        "/regen", "/regen answers the last message again. At temperature 0, first /set temperature 0.7.",
        ("/regen", "the [regen|/regen|regenerate] command"),
        ("[get|have|see|make|produce|ask for] [another|a different|a new|a second|one more|a better|an alternative] {r} [to the last message|to my last question|to that|for this question|to this question|to the same message|]".replace("{r}", REPLY), "[regenerate|repeat|redo|remake|renew|retry|replace] [the|your|the last|this|that|your last] {r}".replace("{r}", REPLY), "[make|let] [you|it|the model] [try again|answer again|reply again|say it another way|answer once more|try another time|answer differently]", "[try|roll|answer] again", "get [another|a new|a different] answer [for|to] [the same|this|that|my] [question|message]"),
        ("[can|could|will] you [try again|answer again|answer that again|try another time|say that differently|give another answer|do that again]?", "which command [answers again|makes a new reply|repeats the reply|gives another answer]?", "[this|that|the] {r} [is|was] [bad|not good|wrong|poor|useless], [try again|another one please|give me another|once more]".replace("{r}", REPLY), "[another|a different|a new|one more] {r} [please|]".replace("{r}", REPLY), "I [want|need|would like] [another|a different|a new] {r}".replace("{r}", REPLY), "same question, new answer", "I am not happy with [the|your|this] {r}".replace("{r}", REPLY), "I [do not|don't] like [the|your|that|my last] {r}".replace("{r}", REPLY), "[try|answer|reply] [once more|one more time|again|another time] [please|]", "[redo|repeat|retry|regenerate] [that|it|the answer|this reply]", "[retry|redo|repeat] [it|that|the reply|last answer|the last answer]", "once more", "I [dislike|hate|do not want] [this|that] [reply|answer]", "[can|could] you [try|do|say] [it|that|this] [again|differently|anew]?"),
    ),
    Topic(
        "/clear", "/clear forgets the conversation, but not the system prompt.",
        ("/clear", "the [clear|/clear] command"),
        ("[clear|forget|erase|delete|reset|wipe|empty|drop|discard|throw away] [the|this|our|my|the whole|the entire] {c} [completely|now|so far|]".replace("{c}", CHAT), "[start|begin] [again|anew|afresh|from scratch|from the beginning|fresh|a new chat|a new conversation|a fresh conversation|with a clean slate]", "[delete|erase|forget|clear|remove|wipe out] [all messages|everything|all we said|everything we said|what we said|the history of this chat|all of this|the context]", "make you forget [everything|all|this|what we said|our conversation|all of that]", "free the context", "start [from zero|from the top|a clean chat]", "begin from zero", "wipe [all of this|the slate|our talk]"),
        ("[forget|clear|erase|delete|wipe] [everything|all|all that|it all|what we said|the conversation|the chat|our chat]", "[can|will] you forget [everything|this conversation|what we said|all this|that]?", "which command [forgets|clears|deletes|erases|resets] the {c}?".replace("{c}", CHAT), "[new|fresh] {c}".replace("{c}", CHAT), "is the system prompt [forgotten|kept|lost] [after|by] /clear?", "what stays after /clear?", "what does /clear [keep|leave|forget]?", "the context is full, how do I empty it?", "[reset|restart|renew] [the chat|this chat|our conversation|everything] [please|]", "[let the model|make the model|make it|let it] forget [everything|all of it|what was said|the conversation]", "does /clear [remove|delete|forget|change|touch] the system prompt?", "is [everything|the system prompt] gone after /clear?", "[will|does] the system prompt [stay|survive] [a|the|after] /clear?", "start over", "reset"),
    ),
    Topic(
        "/undo", "/undo takes back the last message and its reply.",
        ("/undo", "the [undo|/undo] command"),
        ("[take back|undo|revoke|withdraw|delete|remove|cancel|drop|unsay|retract|erase|revert|scratch|correct] [my|the|only the] [last|latest|previous|most recent] {q} [and its reply|and the reply|and its answer|again|]".replace("{q}", QUESTION), "[take back|undo|revoke|unsay|retract|withdraw|revert] [that|this|it|what I said|what I just said|what I just typed|what I wrote|the last exchange|the last step|one step]", "go [back one|one back|back a|one step back|back one message|back one turn|a turn back]", "[delete|remove|drop|forget] [only|just] the last [turn|message|exchange|question|answer|two messages]", "[remove|delete|drop|erase|cancel] the last [question|message|turn] and [its answer|its reply|the reply|the response]"),
        ("I [typed|wrote|said|asked|sent] [something wrong|the wrong thing|nonsense|a typo|something silly|the wrong question|it wrong], [can I take it back|how do I take it back|what now|can I undo that|how do I undo it|can I remove it|how do I correct it]?", "which command [takes back|undoes|removes] the last {q}?".replace("{q}", QUESTION), "my last {q} was [wrong|a mistake|bad|silly|a typo|not what I meant]".replace("{q}", QUESTION), "[can|could] the last {q} be [taken back|undone|removed|revoked|deleted]?".replace("{q}", QUESTION), "undo", "undo [that|it|please|this]", "oops, that was a [mistake|typo]", "I did not mean [that|to send this|to ask that]", "[remove|erase|delete] my last [message|question]", "last [question|message] away"),
    ),
    Topic(
        "/exit", "/exit leaves the chat. Ctrl-D does the same.",
        ("/exit", "the [exit|/exit|quit] command", "/quit", "Ctrl-D", "/bye", "/q", "ctrl d"),
        ("[leave|exit|quit|end|close|stop|finish|terminate|get out of] [the|this|our|] {c}".replace("{c}", CHAT), "[leave|exit|quit|end|close|shut down|terminate|get out of] [EdgeSpec|the program|this program|the app|it|this thing|the demo]", "[leave|exit|get out|go away|log out|return to the shell|get back to my shell|stop for today|hang up]", "get away from here", "end the [chat|program|session] [now|for today|]"),
        ("which [key|command] [leaves|ends|closes|quits|exits] the [chat|conversation|program|session]?", "how does this [end|stop|close]?", "I [want|would like|have] to [leave|quit|go|stop here|exit|end this]", "let me out", "[quit|exit|leave|close|end]", "I am done, [how do I close it|how do I leave|what now]?", "how is the {c} [ended|closed|left]?".replace("{c}", CHAT), "back to the shell?", "[close|end|quit|leave] the [program|session|conversation|app] [please|now|]", "[close|end|quit|leave] [this|it] [please|now|]", "close this chat"),
    ),
    Topic(
        "Ctrl-C", "Ctrl-C stops the reply. The chat goes on.",
        ("Ctrl-C", "ctrl c", "the key Ctrl-C", "control C"),
        ("[stop|interrupt|abort|cancel|break off|halt|cut|end|cut off] [a|the|your|this|the running|a long|the current] {r}".replace("{r}", REPLY), "[stop|interrupt|halt|shut up|silence|pause] [you|the model|you while you talk|the model while it writes|generation|the output|the text]", "make [you|it|the model] [stop|shut up|be quiet|stop writing|end the reply|stop the answer]", "abort [it|this|the answer|a long answer]", "[interrupt|stop|halt] [the|this|your] [running|present|current|long] [reply|answer|output]"),
        ("stop [talking|writing|it|now|the reply|that]", "[it|the model] [will not|does not|won't] stop [talking|writing|], [what now|what do I do|how do I stop it]?", "[can|could] I [stop|interrupt] you?", "which key [stops|interrupts|aborts|cancels] [the|a|your] {r}?".replace("{r}", REPLY), "does Ctrl-C [close|end|leave|kill|stop] [the chat|everything|the program]?", "what happens [if|when] I press Ctrl-C?", "you talk too much, how do I stop that?", "this {r} [goes on and on|never ends|takes too long], how do I [stop|cancel|end] it?".replace("{r}", REPLY), "the [reply|answer|output|text] is too long, how do I [stop|break off|interrupt|end] it?", "does [ctrl-c|Ctrl-C|ctrl c] [end|leave|exit|kill] the [chat|program|session|conversation]?", "abort [it|this|the answer|the reply]", "I want it to stop [writing|talking|]", "[interrupt|stop|cancel|break off] [the|this|your] [reply|answer|output]"),
    ),
    Topic(
        "new line", "Alt-Enter or Ctrl-J begins a new line. Enter sends.",
        ("Alt-Enter", "Ctrl-J", "the key Ctrl-J"),
        ("[type|write|enter|send|make|compose] [a message of|a message with|] [several|two|many|more|multiple] lines", "[begin|start|make|get|insert|add|write|type|enter] a [new line|line break|newline|second line|next line] [in a message|in my message|without sending|]", "[write|send] a [longer|long|multi-line|multiline] message", "break a line", "[write|type|enter|send] [several|multiple|many|two|three] lines [at once|in one message|]"),
        ("which key [begins|makes|gives|starts|inserts] a new line?", "[does|what does] Enter [send|do]?", "how do I send a message?", "can a message have [several|two|many|multiple] lines?", "new line?", "Enter [sends too early|sends my message], how do I get a new line?", "how [can|do] I [type|enter] [two|three|more] lines [of text|]?", "a message with [many|several] lines?"),
    ),
    Topic(
        "editor", "Ctrl-G opens your editor for a long message.",
        ("Ctrl-G", "ctrl g", "the key Ctrl-G"),
        ("[use|open|start|call|get] [my|an|the|my own|an external] [editor|text editor]", "[write|edit|compose|type] [a|my|the|a long] [message|prompt|question|text] [in|with|using] [my|an|the|a real|my own] [editor|text editor|vi|vim|emacs|nano]", "[open|use|start] [vi|vim|emacs|nano] [for|with] [a|my|a long] [message|question|text]"),
        ("is there an editor?", "which key opens [the|my|an] editor?", "can I use [vim|emacs|nano|my editor|vi|an editor]?", "editor for long messages?", "how do I get $EDITOR?", "[vim|emacs|nano] for [a|my] long [message|text]?"),
    ),
)  # fmt: skip
