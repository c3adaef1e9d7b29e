"""A fixed table of small facts, asked in many ways, and the refusal for entries that are not in it."""

# ruff: noqa: E501, SIM905 (tables, easier to read and to extend as text)

from __future__ import annotations

from dataclasses import dataclass

from edgespec.demo_model.recipe.calendar import ORDINALS
from edgespec.demo_model.recipe.draw import Draw, Exchange
from edgespec.demo_model.recipe.unknown import REPLY, gibberish


@dataclass(frozen=True)
class Relation:
    """Pairs (x, y), how x is asked for y, and the reply. `follow`: how a second x is asked for after a first."""

    pairs: tuple[tuple[str, str], ...]
    reply: str
    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    follow: bool = True


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((x, y) for x, y in (entry.split(":") for entry in text.split("|")))


_CAPITALS = _pairs(
    "France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|England:London|Ireland:Dublin|Poland:Warsaw|"
    "Austria:Vienna|Hungary:Budapest|Greece:Athens|Turkey:Ankara|Russia:Moscow|Sweden:Stockholm|Norway:Oslo|"
    "Denmark:Copenhagen|Finland:Helsinki|Belgium:Brussels|Switzerland:Bern|Egypt:Cairo|Kenya:Nairobi|Japan:Tokyo|"
    "China:Beijing|India:New Delhi|Thailand:Bangkok|Vietnam:Hanoi|Cuba:Havana|Canada:Ottawa|Brazil:Brasilia|Argentina:Buenos Aires|"
    "Chile:Santiago|Peru:Lima|Colombia:Bogota|Iran:Tehran|Iraq:Baghdad|Australia:Canberra"
)
_CONTINENTS = _pairs(
    "France:Europe|Germany:Europe|Italy:Europe|Spain:Europe|Poland:Europe|Sweden:Europe|Norway:Europe|Greece:Europe|Egypt:Africa|"
    "Kenya:Africa|Japan:Asia|China:Asia|India:Asia|Thailand:Asia|Vietnam:Asia|Iran:Asia|Canada:North America|Cuba:North America|"
    "Brazil:South America|Argentina:South America|Chile:South America|Peru:South America|Portugal:Europe|Austria:Europe"
)
_COLOURS = _pairs(
    "the sky:blue|grass:green|a banana:yellow|a lemon:yellow|snow:white|milk:white|coal:black|blood:red|a tomato:red|a cherry:red|"
    "a carrot:orange|an orange:orange|chocolate:brown|a frog:green|a leaf:green|a raven:black|a polar bear:white|an elephant:grey|"
    "a strawberry:red|salt:white|the sea:blue|honey:golden|a pumpkin:orange|a plum:purple"
)
_SOUNDS = _pairs(
    "dog:barks|cat:meows|cow:moos|horse:neighs|sheep:bleats|duck:quacks|frog:croaks|lion:roars|owl:hoots|bee:buzzes|pig:grunts|snake:hisses|wolf:howls|mouse:squeaks"
)
_LEGS = _pairs(
    "dog:4|cat:4|cow:4|horse:4|spider:8|bee:6|ant:6|duck:2|owl:2|snake:0|fish:0|bird:2|beetle:6|frog:4|fly:6|octopus:0"
)
_BABIES = _pairs(
    "dog:puppy|cat:kitten|cow:calf|horse:foal|sheep:lamb|duck:duckling|frog:tadpole|lion:cub|goat:kid|pig:piglet|bear:cub|hen:chick|goose:gosling|owl:owlet"
)
_HOMES = _pairs(
    "bee:hive|bird:nest|dog:kennel|fox:den|spider:web|horse:stable|ant:anthill|rabbit:burrow|lion:den|cow:barn|beaver:lodge"
)
_OPPOSITES = _pairs(
    "hot:cold|big:small|up:down|fast:slow|light:dark|happy:sad|old:young|long:short|open:closed|full:empty|rich:poor|hard:soft|"
    "wet:dry|high:low|early:late|day:night|left:right|good:bad|strong:weak|loud:quiet|near:far|first:last|true:false|clean:dirty"
)
_PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")

RELATIONS = {
    "capital": Relation(
        _CAPITALS, "{y} is the capital of {x}.",
        ("What is the capital of {x}?", "Name the capital of {x}.", "Which city is the capital of {x}?", "What's the capital of {x}?", "The capital of {x}?", "Capital of {x}?", "What is the capital city of {x}?", "Do you know the capital of {x}?"),
        ("Tell me the capital of {x}.", "Which city is {x}'s capital?", "I need the capital of {x}."),
    ),
    "country": Relation(
        tuple((y, x) for x, y in _CAPITALS), "{x} is the capital of {y}.",
        ("{x} is the capital of which country?", "Which country has the capital {x}?", "What country is {x} the capital of?", "Of which country is {x} the capital?", "{x} is the capital of what?"),
        ("Which country is {x} the capital of?", "What country has the capital {x}?"),
    ),
    "continent": Relation(
        _CONTINENTS, "{x} is in {y}.",
        ("Which continent is {x} in?", "On which continent is {x}?", "What continent is {x} in?", "What is the continent of {x}?", "{x} is on which continent?", "Which continent is {x} on?"),
        ("In which continent is {x}?", "What continent is {x} on?", "Tell me the continent of {x}."),
    ),
    "colour": Relation(
        _COLOURS, "The colour of {x} is {y}.",
        ("What colour is {x}?", "Which colour is {x}?", "What is the colour of {x}?", "What color is {x}?", "Which colour has {x}?", "What's the colour of {x}?"),
        ("Tell me the colour of {x}.", "Which color is {x}?", "What colour has {x}?"),
    ),
    "sound": Relation(
        _SOUNDS, "A {x} {y}.",
        ("What sound does a {x} make?", "What does a {x} say?", "Which sound does a {x} make?", "What noise does a {x} make?", "What is the sound of a {x}?"),
        ("Which noise does a {x} make?", "How does a {x} sound?", "Tell me the sound of a {x}."),
    ),
    "legs": Relation(
        _LEGS, "A {x} has {y} legs.",
        ("How many legs does a {x} have?", "How many legs has a {x}?", "What is the number of legs of a {x}?", "How many legs are on a {x}?", "A {x} has how many legs?", "Tell me the number of legs of a {x}.", "On how many legs does the {x} stand?"),
        ("How many legs does the {x} have?", "Tell me how many legs a {x} has.", "On how many legs does a {x} walk?"),
    ),
    "baby": Relation(
        _BABIES, "A baby {x} is called a {y}.",
        ("What is a baby {x} called?", "What do you call a baby {x}?", "What is a young {x} called?", "How is a baby {x} called?", "What is the name of a baby {x}?", "The baby of a {x} is called what?"),
        ("What do you call a young {x}?", "What is the baby of a {x} called?", "Tell me what a baby {x} is called."),
    ),
    "home": Relation(
        _HOMES, "The home of a {x} is a {y}.",
        ("Where does a {x} live?", "What is the home of a {x}?", "What is the home of a {x} called?", "In what does a {x} live?", "What does a {x} live in?", "Tell me the home of a {x}.", "Tell me what a {x} lives in."),
        ("Tell me where a {x} lives.", "What is a {x}'s home?", "In which home does a {x} live?"),
    ),
    "opposite": Relation(
        _OPPOSITES, "The opposite of {x} is {y}.",
        ("What is the opposite of {x}?", "Opposite of {x}?", "What's the opposite of {x}?", "Which word is the opposite of {x}?", "Name the opposite of {x}.", "Give me the opposite of {x}."),
        ("Tell me the opposite of {x}.", "The opposite of {x} is what?", "I need the opposite of {x}."),
    ),
    "planet": Relation(
        tuple(zip(ORDINALS, _PLANETS, strict=False)), "The {x} planet from the sun is {y}.",
        ("What is the {x} planet?", "Which planet is the {x} from the sun?", "What is the {x} planet from the sun?", "Name the {x} planet.", "Which is the {x} planet?"),
        ("Tell me the {x} planet.", "Which planet is {x} from the sun?", "Which planet is the {x} planet?"),
        follow=False,
    ),
}  # fmt: skip

# Questions with one answer: (reply, seen phrasings, unseen phrasings).
SINGLES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Jupiter is the largest planet.", ("What is the largest planet?", "Which planet is the largest?", "What is the biggest planet?", "Name the largest planet."), ("Which planet is the biggest?", "Tell me the largest planet.")),
    ("Mercury is the smallest planet.", ("What is the smallest planet?", "Which planet is the smallest?", "Name the smallest planet."), ("Tell me the smallest planet.", "Which is the smallest planet?")),
    ("There are 8 planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.", ("How many planets are there?", "Name the planets.", "List all planets.", "What are the planets?", "Which planets do you know?"), ("List the planets.", "Tell me the planets.", "Name all planets.")),
    ("The seasons are spring, summer, autumn and winter.", ("What are the seasons?", "Name the seasons.", "How many seasons are there?", "Which seasons are there?", "List the four seasons."), ("List the seasons.", "Name the four seasons.")),
    ("The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.", ("What are the days of the week?", "Name the days of the week.", "List the days of the week.", "Which days does a week have?"), ("Tell me the days of the week.", "List all days of the week.")),
    ("The months are January, February, March, April, May, June, July, August, September, October, November and December.", ("What are the months?", "Name the months of the year.", "List the months.", "Which months does a year have?"), ("Name the months.", "List all months of the year.", "Tell me the months.")),
    ("A week has 7 days.", ("How long is a week?", "How many days does the week have?", "How many days are there in one week?"), ("How many days long is a week?", "How many days are there in a week?")),
    ("A year has 365 days, or 366 in a leap year.", ("How many days does a year have?", "How many days are in a year?", "How long is a year?"), ("How many days are there in a year?", "How many days has a year?")),
    ("The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.", ("What are the colours of the rainbow?", "Name the colours of the rainbow.", "Which colours has the rainbow?", "Which colours are in the rainbow?"), ("List the colours of the rainbow.", "Tell me the colours of the rainbow.")),
    ("Blue and yellow make green.", ("What do blue and yellow make?", "Which colour do blue and yellow make?", "What happens when I mix blue and yellow?", "Mix blue and yellow.", "I mix blue and yellow. Which colour is that?"), ("What colour do blue and yellow make?", "I mix blue and yellow. What do I get?")),
    ("Red and yellow make orange.", ("What do red and yellow make?", "Which colour do red and yellow make?", "What happens when I mix red and yellow?", "Mix red and yellow.", "I mix red and yellow. Which colour is that?"), ("What colour do red and yellow make?", "I mix red and yellow. What do I get?")),
    ("Red and blue make purple.", ("What do red and blue make?", "Which colour do red and blue make?", "What happens when I mix red and blue?", "Mix red and blue.", "I mix red and blue. Which colour is that?"), ("What colour do red and blue make?", "I mix red and blue. What do I get?")),
    ("Water freezes at 0 degrees Celsius.", ("When does water freeze?", "At what temperature does water freeze?", "What is the freezing point of water?", "How cold must water be to freeze?"), ("At which temperature does water freeze?", "Tell me the freezing point of water.")),
    ("Water boils at 100 degrees Celsius.", ("When does water boil?", "At what temperature does water boil?", "What is the boiling point of water?", "How hot must water be to boil?"), ("At which temperature does water boil?", "Tell me the boiling point of water.")),
    ("The blue whale is the largest animal.", ("What is the largest animal?", "Which animal is the largest?", "What is the biggest animal?", "Name the largest animal."), ("Which animal is the biggest?", "Tell me the largest animal.")),
    ("The cheetah is the fastest land animal.", ("What is the fastest animal?", "Which animal is the fastest?", "What is the fastest land animal?", "Which animal runs fastest?"), ("Name the fastest animal.", "Tell me the fastest animal.")),
    ("The giraffe is the tallest animal.", ("What is the tallest animal?", "Which animal is the tallest?", "Name the tallest animal."), ("Tell me the tallest animal.", "Which is the tallest animal?")),
    ("The English alphabet has 26 letters.", ("How many letters are in the alphabet?", "How many letters does the alphabet have?", "How many letters does the English alphabet have?"), ("How many letters are there in the alphabet?", "How many letters are in the English alphabet?")),
    ("A triangle has 3 sides.", ("How many sides does a triangle have?", "How many sides has a triangle?", "How many sides are in a triangle?"), ("Tell me how many sides a triangle has.", "How many sides does the triangle have?")),
    ("A square has 4 sides.", ("How many sides does a square have?", "How many sides has a square?", "How many sides are in a square?"), ("Tell me how many sides a square has.", "How many sides does the square have?")),
    ("The continents are Africa, Antarctica, Asia, Europe, North America, Oceania and South America.", ("What are the continents?", "Name the continents.", "How many continents are there?", "Which continents are there?"), ("List the continents.", "Tell me the continents.")),
    ("The earth turns around the sun once a year.", ("How long does the earth need to go around the sun?", "What does the earth turn around?", "Does the earth turn around the sun?"), ("Does the earth go around the sun?", "What does the earth go around?")),
)  # fmt: skip

# Countries that exist but are not in the table: the right reply is that the model does not know.
_OTHER_COUNTRIES = (
    "Nepal|Ghana|Mali|Chad|Niger|Togo|Benin|Gabon|Angola|Zambia|Malawi|Uganda|Rwanda|Sudan|Libya|Tunisia|Algeria|Morocco|Jordan|"
    "Syria|Yemen|Oman|Qatar|Kuwait|Bahrain|Pakistan|Bhutan|Laos|Cambodia|Malaysia|Indonesia|Mongolia|Estonia|Latvia|Lithuania|"
    "Ukraine|Moldova|Romania|Bulgaria|Serbia|Croatia|Slovenia|Slovakia|Albania|Malta|Cyprus|Israel|Lebanon|Panama|Haiti|Jamaica|"
    "Honduras|Guatemala|Nicaragua|Ecuador|Bolivia|Paraguay|Uruguay|Venezuela|Guyana|Fiji|Samoa|Tonga|Iceland|Luxembourg|Monaco"
).split("|")
_FOLLOW = ("And {x}?", "What about {x}?", "And for {x}?", "And what about {x}?", "How about {x}?")
_FOLLOW_UNSEEN = ("And now {x}?", "Now {x}?", "And how about {x}?")


def _ask(d: Draw, key: str, relation: Relation) -> tuple[str, str, str]:
    """(question, x, y). Held-out argument: an x with one of its phrasings; every x is seen in some phrasing."""

    def sample() -> tuple[tuple[str, str], str]:
        return d.pick(relation.pairs), d.phrase(relation.seen, relation.unseen)

    (x, y), text = d.arguments(sample, f"fact {key}")
    return text.format(x=x), x, y


def fact(d: Draw) -> list[Exchange]:
    """A question from the table, sometimes with a second one that only names another entry."""
    if d.chance(0.25):
        reply, seen, unseen = d.pick(SINGLES)
        return [Exchange(d.question(d.phrase(seen, unseen)), reply, "facts")]
    key = d.pick(tuple(RELATIONS))
    relation = RELATIONS[key]
    if d.chance(0.08) and key in ("capital", "continent"):
        x = (
            d.arguments(lambda: d.pick(_OTHER_COUNTRIES), "other country")
            if d.chance(0.7)
            else gibberish(d).capitalize()
        )
        return [Exchange(d.question(d.phrase(relation.seen, relation.unseen).format(x=x)), REPLY, "unknown")]
    text, x, y = _ask(d, key, relation)
    out = [Exchange(d.question(text), relation.reply.format(x=x, y=y), "facts")]
    if relation.follow and d.chance(0.2):
        x, y = d.arguments(lambda: d.pick(relation.pairs), f"follow {key}")
        shown = (
            x
            if x.startswith(("a ", "an ", "the "))
            or key in ("capital", "country", "continent", "opposite", "colour")
            else f"a {x}"
        )
        text = d.phrase(_FOLLOW, _FOLLOW_UNSEEN).format(x=shown)
        out.append(Exchange(d.question(text), relation.reply.format(x=x, y=y), "follow-up"))
    return out
