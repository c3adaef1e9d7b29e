"""Questions outside the domain, all with the same honest reply."""

# ruff: noqa: E501, SIM905 (word tables, easier to read and to extend as text)

from __future__ import annotations

from edgespec.demo_model.recipe.draw import Draw, Exchange
from edgespec.demo_model.recipe.frames import GOAL, NAME, around, spelled

REPLY = "I do not know that. I am only a small demo model."

_TOPICS = tuple(
    "quantum physics|football|the stock market|the French Revolution|black holes|democracy|jazz music|chess|climate change|"
    "bitcoin|the human brain|poetry|chemistry|evolution|cooking|the Roman Empire|machine learning|photosynthesis|vaccines|"
    "volcanoes|nuclear power|philosophy|Shakespeare|basketball|the Olympic Games|tax law|inflation|gravity|DNA|opera|ballet|"
    "electric cars|the Bible|Buddhism|the Middle Ages|dinosaurs|airplanes|rockets|bridges|the internet|blockchain|robots|"
    "novels|painting|sculpture|the theory of relativity|mortgages|insurance|yoga|diabetes|cancer|headaches|the immune system|"
    "tennis|cricket|baseball|swimming|marathons|the moon landing|satellites|earthquakes|hurricanes|deserts|rainforests|"
    "coral reefs|whaling|fashion|perfume|coffee|wine|beer|chocolate|pasta|sushi|pizza|the economy|trade|banks|elections|"
    "parliament|the police|prisons|schools|universities|grammar|linguistics|Latin|Chinese history|Greek myths|pyramids|"
    "castles|knights|pirates|submarines|trains|steam engines|batteries|solar panels|magnets|lasers|light bulbs|glass|steel|"
    "concrete|plastics|paper making|printing|photography|cinema|television|radio|video games|rock music|guitars|pianos|"
    "violins|drums|Mozart|Beethoven|Picasso|Einstein|Newton|Darwin|Napoleon|Caesar|Cleopatra|Gandhi|Lincoln|Plato|Aristotle|"
    "psychology|dreams|sleep|memory loss|love|happiness|war|peace|time travel|aliens|ghosts|magic tricks|gardening|knitting|"
    "carpentry|plumbing|hiking|camping|sailing|skiing|horse riding|boxing|judo|calculus|algebra|geometry|topology|statistics|"
    "prime numbers|fractions|set theory|logic|databases|compilers|operating systems|Java|JavaScript|Rust|HTML|"
    "networks|encryption|search engines|printers|keyboards|monitors|"
    "firewalls|spreadsheets|fonts|web browsers|viruses|email|emojis|passwords|cables|routers|microphones|cameras|sensors|chess engines|"
    "the human memory|music streaming|the target market|diamond rings|pin boards|phone chargers|language schools|model railways".split(
        "|"
    )
)
_THINGS_DONE = tuple(
    "bake a cake|fix my car|cook rice|tie a tie|learn French|lose weight|grow tomatoes|make a website|repair a bicycle|"
    "paint a wall|build a house|play the guitar|write a novel|train a dog|buy a house|invest money|change a tyre|clean a carpet|"
    "make friends|sleep better|run faster|draw a horse|play poker|sail a boat|fly a plane|catch a fish|plant a tree|sew a shirt|"
    "brew beer|make soap|install Windows|reset my phone|delete a file|center a div|sort a dictionary in Python|"
    "open a bank account|apply for a visa|renew my passport|write a letter|give a speech|solve a Rubik's cube|boil an egg|"
    "remove a stain|iron a shirt|stop smoking|get a job|start a company|file my taxes|meditate|dance the tango|juggle|"
    "copy a file|rename a file|print a file|find a lost file|move a folder|zip a folder|delete a photo|delete my account|close a window|"
    "open a PDF|read a map|save money|clear my throat|undo a knot|load a truck|install Python|download a film|remove a virus|"
    "pack a suitcase|train a horse|exit a building|set the table|stop a leak|type faster|write a program|show a film|make a backup".split(
        "|"
    )
)
# What is done to things, in every pair: a command's word alone must not decide that EdgeSpec is meant.
_VERBS = tuple(
    "delete|find|copy|rename|print|open|close|move|save|load|read|hide|share|remove|repair|buy|sell|paint|clean|lose|draw|"
    "stop|show|change|replace|clear|undo|send|record|scan|lock".split("|")
)
_OBJECTS = tuple(
    "a file|a lost file|a folder|a document|a photo|a letter|a window|a door|a song|a video|a picture|a book|a map|a parcel|"
    "a drawing|a table|a bicycle|an email|an account|my phone|my keys|my printer|my calendar|my camera|a ticket|a poster".split(
        "|"
    )
)
_PEOPLE = tuple(
    "Einstein|Napoleon|Mozart|Shakespeare|Picasso|Newton|Darwin|Cleopatra|Lincoln|Plato|the president of Brazil|the king of Sweden|"
    "my neighbour|the inventor of the telephone|Marie Curie|Leonardo da Vinci|Nelson Mandela|Bach|Columbus|Galileo|Tesla|Edison|"
    "the author of Hamlet|the first man on the moon|Socrates|Homer|Dante|Goethe|Kafka|Tolstoy|Gauss|Euler|Turing|my teacher".split(
        "|"
    )
)
_PLACES = tuple(
    "Tokyo|New York|London|the Amazon|the Sahara|Mount Everest|Lake Baikal|Berlin|Sydney|Hawaii|Siberia|the Alps|Bali|Texas|"
    "California|Chicago|Mumbai|Shanghai|Nairobi|Lagos|the Nile|the Danube|Iceland|Greenland|the North Pole|Mexico City|Venice|"
    "Barcelona|Hamburg|Lyon|Milan|Kyoto|Seoul|Dubai|Singapore|Alaska|Patagonia|Crete|Sicily|Bavaria|my street|this town".split(
        "|"
    )
)
_TASKS = tuple(
    "a poem|an essay|a song|a Python program|a letter to my boss|a business plan|a speech|a recipe|a haiku|an email|a function in C|"
    "a summary|a joke in Spanish|a love letter|a shopping list|a press release|a unit test|a SQL query|a shell script|a report".split(
        "|"
    )
)

_ABOUT = (
    "What is {t}?", "Explain {t}.", "Tell me about {t}.", "What do you know about {t}?", "Why is {t} important?",
    "What do you think about {t}?", "How does {t} work?", "Who invented {t}?", "Give me an introduction to {t}.",
    "What is the history of {t}?", "I want to learn about {t}.", "Do you like {t}?", "When did {t} begin?",
    "What are the main ideas of {t}?", "Is {t} dangerous?", "What is the best book about {t}?", "Describe {t}.",
)  # fmt: skip
_ABOUT_UNSEEN = (
    "Can you explain {t}?",
    "What can you tell me about {t}?",
    "Why do people like {t}?",
    "How did {t} begin?",
    "I have a question about {t}.",
)
_HOW = (
    "How do I {h}?",
    "How can I {h}?",
    "What is the best way to {h}?",
    "Can you help me {h}?",
    "Teach me to {h}.",
    "I want to {h}.",
    "Should I {h}?",
    "How long does it take to {h}?",
)
_HOW_UNSEEN = ("How does one {h}?", "Explain how to {h}.", "What do I need to {h}?", "Is it hard to {h}?")
_WHO = (
    "Who was {p}?",
    "Who is {p}?",
    "When was {p} born?",
    "Where did {p} live?",
    "How old is {p}?",
    "What did {p} do?",
    "Where is {p} from?",
    "How did {p} die?",
    "Was {p} rich?",
)
_WHO_UNSEEN = ("Tell me who {p} was.", "When did {p} live?", "Why is {p} famous?", "Where was {p} born?")
_WHERE = (
    "Where is {l}?",
    "What is the population of {l}?",
    "How far is {l}?",
    "What is the weather in {l}?",
    "How do I get to {l}?",
    "How large is {l}?",
    "Who lives in {l}?",
    "Is {l} beautiful?",
    "What time is it in {l}?",
    "What is a good hotel in {l}?",
)
_WHERE_UNSEEN = (
    "How many people live in {l}?",
    "How is the weather in {l}?",
    "What should I see in {l}?",
    "How big is {l}?",
)
_WRITE = (
    "Write {w} about {t}.",
    "Write me {w} about {t}.",
    "I need {w} about {t}.",
    "Can you write {w} about {t}?",
    "Compose {w} about {t}.",
)
_WRITE_UNSEEN = ("Make {w} about {t}.", "Please write me {w} about {t}.", "Could you create {w} about {t}?")
_OTHER = (
    "What is the meaning of life?", "Who won the match yesterday?", "What is the news today?", "What will the weather be tomorrow?",
    "What is the square root of {n}?", "What is {n} percent of {m}?", "How much does a car cost?", "What should I eat tonight?",
    "Translate this into French.", "Translate {t} into German.", "Read this file for me.", "Open the browser.", "Play some music.",
    "What is my password?", "Where are my keys?", "What is in the year {n}?", "What happened in {n}?", "Call my mother.",
    "What is the price of gold?", "Which film should I watch?", "Who is the president?", "Who will win the election?",
    "Recommend a restaurant in {l}.", "Book a flight to {l}.", "What is the factorial of {n}?", "Is {n} a prime number?",
    "What is the logarithm of {n}?", "What is the derivative of x squared?", "Solve x + {n} = {m}.", "Prove that {t} is true.",
    "Compare {t} and {s}.", "What is better, {t} or {s}?", "Is {t} older than {s}?", "Summarise {t} in one sentence.",
    "How many people like {t}?", "When does the bus leave?", "Send an email to {p}.", "What would {p} say about {t}?",
)  # fmt: skip
_OTHER_UNSEEN = (
    "Who won the game?", "What is the cube root of {n}?", "How much does {t} cost?", "Translate {t} into Italian.",
    "What happened in the year {n}?", "Order a pizza.", "What is the difference between {t} and {s}?", "Did {p} like {t}?",
    "Find a cheap flight to {l}.", "Which is better: {t} or {s}?",
)  # fmt: skip
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"


def gibberish(d: Draw) -> str:
    """A pronounceable word that is none."""
    return "".join(d.pick(_CONSONANTS) + d.pick(_VOWELS) for _ in range(d.number(1, 3))) + d.pick(
        ("", "n", "r", "sk", "x")
    )


def _topic(d: Draw) -> str:
    if d.chance(0.12):
        return gibberish(d)
    return d.arguments(lambda: d.pick(_TOPICS), "topic")


def _done(d: Draw) -> str:
    if d.chance(0.35):
        return d.arguments(lambda: f"{d.pick(_VERBS)} {d.pick(_OBJECTS)}", "done")
    return d.arguments(lambda: d.pick(_THINGS_DONE), "done")


def unknown(d: Draw) -> list[Exchange]:
    """A question that the model cannot answer."""
    kind = d.pick(
        ("about", "about", "about", "how", "how", "who", "where", "write", "other", "other", "noise")
    )
    if kind == "noise":
        words = [gibberish(d) for _ in range(d.number(1, 4))]
        return [Exchange(" ".join(words) + d.pick(("", "?", ".", "!")), REPLY, "unknown")]
    seen, unseen = {
        "about": (_ABOUT, _ABOUT_UNSEEN), "how": (_HOW, _HOW_UNSEEN), "who": (_WHO, _WHO_UNSEEN),
        "where": (_WHERE, _WHERE_UNSEEN), "write": (_WRITE, _WRITE_UNSEEN), "other": (_OTHER, _OTHER_UNSEEN),
    }[kind]  # fmt: skip
    frame = d.phrase(seen, unseen)
    if kind in ("about", "how") and not d.split.unseen_phrasings and d.chance(0.5):
        # As EdgeSpec is asked about, so that it is the subject that decides.
        frames = NAME if kind == "about" else GOAL
        frame = spelled(d, d.pick(frames)).replace("{x}", "{t}").replace("{g}", "{h}")
    text = frame.format(
        t=_topic(d),
        s=_topic(d),
        h=_done(d),
        p=d.arguments(lambda: d.pick(_PEOPLE), "person"),
        l=d.arguments(lambda: d.pick(_PLACES), "place"),
        w=d.pick(_TASKS),
        n=d.number(2, d.pick((99, 2030))),
        m=d.number(2, 99),
    )
    if not d.split.unseen_phrasings:
        text = around(d, text)
    return [Exchange(d.question(text), REPLY, "unknown")]
