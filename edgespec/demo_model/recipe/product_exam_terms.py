"""Part of the frozen exam (`product_exam`): packing, exactness and terms."""

# ruff: noqa: E501 (a table of questions)

from __future__ import annotations

from edgespec.demo_model.recipe.product_asked import Asked

QUESTIONS: tuple[Asked, ...] = (
    # ---- pack
    # right: edgespec pack MODEL -o DIR --precision int4
    Asked(
        'pack',
        (r"--precision int4",),
        ("how do i quantize a model to 4 bit", "make an int4 version of my model", "turn Qwen3-8B into 4-bit weights, command?",),
        may="--precision --substitute --out /models --help",
    ),
    # right: edgespec pack MODEL -o DIR --precision int8
    Asked(
        'pack',
        (r"--precision int8",),
        ("convert my model to int8", "8 bit quantization how",),
        may="--precision --substitute --out /models --help",
    ),
    # right: int4 is smaller and streams faster; int8 is closer to the original model.
    Asked(
        'pack',
        (r"int4.*(small|half|less|fast|memory|bytes)|int8.*(close|near|accura|exact|better|quality|fine)|(small|fast)\w* .*int4", r"^(?!.*int8 is (smaller|faster))",),
        ("int4 or int8?", "should i take int8 or int4 for my model",),
        may="--precision --substitute /models --help",
    ),
    # right: Yes: rounding the weights makes another model, whose output differs from the original's.
    Asked(
        'pack',
        (r"^(?!\W*no\b)", r"chang|differ|round|another|lossy|quality|not (exactly |quite )?(the )?(same|identical)|no longer|less exact|approximat|^\W*yes\b.{0,18}$",),
        ("does int4 change the answers", "does an int8 model talk differently from the original one?", "Do I lose quality with --precision int4?",),
        may="--precision --substitute /models --help",
    ),
    # right: In the directory that you give with -o.
    Asked(
        'pack',
        (r"(?<![\w-])-o\b|--out|you (give|name|choose)|\bdir\b",),
        ("where does pack write the packed model",),
        may="--out --precision /models --help",
    ),
    # right: No, it reads and writes in pieces, so it needs little memory.
    Asked(
        'pack',
        (r"^(?!\W*yes\b)", r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))|little|pieces", r"^\W*(yes|no|nope)\b.{0,18}$|piece|little|memory|\bram\b",),
        ("does packing need a lot of ram", "will packing a 70B blow up my 16GB machine?", "Do I have to fit the model in memory in order to quantize it",),
        may="--memory /models --help",
    ),
    # right: It writes a copy of the model, and checks first that the disk has room.
    Asked(
        'pack',
        (r"(check|enough|has).*room|space|size|copy",),
        ("how much free disk does pack need", "what if there's not enough disk space for packing",),
        may="--precision --out /models --help",
    ),
    # right: No, the same command goes on where it stopped.
    Asked(
        'pack',
        (r"^(?!\W*yes\b)", r"same command|(go|goes|going|went) on|continu|resum|picks? up|where it (stop|was)",),
        ("pack got killed halfway, do I start over", "power cut during packing. everything lost?",),
        may="--out /models --help",
    ),
    # right: Run edgespec pack --verify DIR.
    Asked(
        'pack',
        (r"--verify",),
        ("how do i check that a packed model isn't corrupted", "verify checksums of packed dir",),
        may="/models --help",
    ),
    # right: No, a model in safetensors is streamed in place and needs no packing.
    Asked(
        'pack',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|pack|safetensors|in place|directly|as it is",),
        ("do I have to pack a model before chatting", "is packing necessary",),
        may="--precision --substitute /models --help",
    ),
    # right: edgespec pack MODEL -o DIR --substitute int4
    Asked(
        'pack',
        (r"--substitute",),
        ("how do i make a substitute", "command for the low bit copy that drafts", "add a substitute to a model i already packed",),
        may="--out --memory --draft-model --precision /models --help",
    ),
    # right: Name its directory like any model: edgespec chat DIR.
    Asked(
        'pack',
        (r"edgespec (chat|generate)|(director|folder|path|name).*(model|chat)|like any|as (the )?model",),
        ("i packed a model into qwen3-int8, how do i use it now",),
        may="--memory --draft-model /models --help",
    ),
    # ---- exact
    # right: Yes, it is exactly the model's own output, whatever the memory.
    Asked(
        'exact',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*(yes|no|nope)\b.{0,18}$|same|exact|identical|own output|lossless", r"^(?!.*(roughly|approximat|not exact|not quite|almost))",),
        ("is the output really the same as the normal model", "Is it lossless?", "do i get the same quality as running the full model in ram",),
        may="--acceptance --memory --precision /models --help",
    ),
    # right: No, drafting never changes what the model says; it only makes it faster.
    Asked(
        'exact',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|draft|chang|same|exact|verif|worse|quality|says",),
        ("does drafting make the answers worse", "do drafts change what it says", "will a bad draft model ruin my replies?", "does speculative decoding hurt quality here",),
        may="--drafter --acceptance --draft-model /models --help",
    ),
    # right: No, the text is the same with any memory limit; only the speed changes.
    Asked(
        'exact',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|same|speed|slow|exact|chang|layer|identical",),
        ("does less memory mean worse answers", "is a reply with --memory 4GB different from one with 24GB", "Does it skip layers to save RAM?",),
        may="--memory --precision /models --help",
    ),
    # right: The model verifies every drafted token itself, and a row's bits are the same however it is computed.
    Asked(
        'exact',
        (r"verif|checks|checked|judg|confirm|\bbits\b", r"draft|token|guess|\brow|order",),
        ("how can it guess tokens and still be exact", "why is the result exactly the model's? sounds too good", "what guarantees the text is identical",),
        may="--acceptance /models --help",
    ),
    # right: That is not promised: the bits may differ on another machine.  (rarely asked)
    Asked(
        'exact',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|machine|computer|promise|guarante|\bbits\b|differ",),
        ("will i get bit identical text on another computer", "Same text on two different machines, guaranteed?",),
        may="--threads --seed /models --help",
    ),
    # right: No, another program sums in another order and rounds otherwise, so equality is not promised.  (rarely asked)
    Asked(
        'exact',
        (r"(?s:^(?!\W*(yes|sure)\b).*(\b(no|not|never|nothing|none|neither|nor|cannot|without|unsupported|refused|refuses)\b|n't))", r"^(?!\W*yes\b)", r"^\W*(yes|no|nope)\b.{0,18}$|program|round|promise|\bsum|order|differ|llama",),
        ("should the text match llama.cpp exactly",),
        may="/models --help",
    ),
    # right: Yes, sampled text with one seed is the same whatever the drafter or the memory.  (rarely asked)
    Asked(
        'exact',
        (r"^(?!\W*(no|nope|not|never|sorry)\b)(?!.*\b(cannot (run|work|be)|can't (run|work|be)|(does|will|would) not (run|work)|(doesn't|won't) (run|work)|impossible|not possible|not supported|unsupported))", r"^\W*yes\b.{0,18}$|seed|exact|sampl", r"^(?!.*(roughly|approximat|not exact|only greedy))",),
        ("is it also exact when i sample with a temperature",),
        may="--seed --temperature --acceptance /models --help",
    ),
    # right: In docs/exactness.md.  (rarely asked)
    Asked(
        'exact',
        (r"exactness\.md|exactness",),
        ("where can I read the proof that output is unchanged",),
        may="/models --help",
    ),
    # ---- terms
    # right: Drafts are cheap guesses of the next tokens; the model verifies many of them in one pass.
    Asked(
        'terms',
        (r"guess|propos|predict|cheap|draft", r"verif|check|judg|confirm|accept|test",),
        ("what does drafting mean", "what's speculative decoding", "wtf is a drafted token", "\"drafts make a streamed model faster\" - what are drafts?", "speculative decoding in one sentence pls",),
        may="--drafter --show-drafts /models --help",
    ),
    # right: A low-bit copy of the streamed weights, kept in memory, that drafts for the model.
    Asked(
        'terms',
        (r"low-bit|low bit|int4|int8|copy|quanti", r"draft|guess|specul|propos",),
        ("what is a substitute", "substitute drafter explained?", "What does --substitute int4 give me",),
        may="--substitute --draft-model --drafter /models --help",
    ),
    # right: Small trained parts (edgespec train cascade) with which the model's own first layers draft.
    Asked(
        'terms',
        (r"train|cascade|layer", r"draft|guess|specul|predict",),
        ("what are adapters here", "adapters = lora?", "what is the --adapters option about",),
        may="--adapters --data --out --drafter /models --help",
    ),
    # right: It drafts with the target's own first and middle layers and trained adapters.
    Asked(
        'terms',
        (r"layer|adapter",),
        ("what is cascade", "explain the cascade drafter",),
        may="--adapters --drafter /models --help",
    ),
    # right: It guesses what followed the same tokens before.
    Asked(
        'terms',
        (r"follow|came|comes|after|repeat|earlier|before|seen|already",),
        ("what is an ngram drafter", "n-gram drafting, how does that work", "ngram??",),
        may="--drafter /models --help",
    ),
    # right: Drafted tokens with branches, all verified in one pass.
    Asked(
        'terms',
        (r"token|draft|branch|continuation", r"many|several|branch|verif|check|pass|once|tree of",),
        ("what is a token tree", "whats the tree in --tree-nodes",),
        may="--tree-nodes /models --help",
    ),
    # right: Pinned weights are kept in memory and not read again.
    Asked(
        'terms',
        (r"memory|ram", r"kept|keep|stay|hold|held|resident|not read|remain|permanent",),
        ("what does pinned mean", "pinning layers = ?", "what does it mean that half of the model is pinned",),
        may="--memory --resident-layers /models --help",
    ),
    # right: It reads the weights that do not fit from the disk in every pass.
    Asked(
        'terms',
        (r"read|load|fetch", r"disk|flash|ssd|storage|drive",),
        ("what does streaming a model mean", "\"streams the layers from flash\" huh?", "is streaming about the internet?", "what do you mean the rest streams",),
        may="--memory --context /models --help",
    ),
    # right: A bounded circle of buffers through which streamed weights are read ahead.
    Asked(
        'terms',
        (r"buffer",),
        ("what is the ring", "ring buffer in edgespec, what for?",),
        may="--memory /models --help",
    ),
    # right: The number of tokens that one pass over the model yields.
    Asked(
        'terms',
        (r"token", r"pass|cycle|time",),
        ("what does tok/cycle mean", "1.8 tok/cycle, is that how many tokens per what?",),
        may="/stats /models --help",
    ),
    # right: The gigabytes read from the disk for each token.
    Asked(
        'terms',
        (r"(read|stream|bytes|gb|gigabyte|load).*token|token.*(read|stream)", r"read|stream|disk|flash|drive|load", r"^(?!.*slow)",),
        ("what does GB/tok in the line below the reply stand for", "6.1 GB/tok ???",),
        may="/stats /models --help",
    ),
    # right: The most memory the process has had, beside the dial.
    Asked(
        'terms',
        (r"memory|ram|resident", r"most|max|highest|largest|peak",),
        ("what is peak 7.9 GB of 8 GB", "meaning of \"peak\" in the stats line",),
        may="/stats --memory /models --help",
    ),
    # right: How much of the drafts is kept when the model verifies them.  (rarely asked)
    Asked(
        'terms',
        (r"draft|guess|token", r"kept|keep|accept|fraction|share|verif|agree",),
        ("what does acceptance mean in the stats",),
        may="--acceptance /stats /models --help",
    ),
    # right: The target is the model that you run and whose output you get.  (rarely asked)
    Asked(
        'terms',
        (r"model", r"\brun\b|verif|whose|\bbig|large|main|original|\breal|judg|you (chose|choose|talk|use|want)",),
        ("what is the target model",),
        may="--draft-model /models --help",
    ),
)  # fmt: skip
