"""Greetings, small talk, and the name that the user gives."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.draw import Draw, Exchange
from edgespec.demo_model.recipe.names import name

# (reply, seen phrasings, unseen phrasings)
INTENTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Hello! How can I help you?", ("Hello!", "Hi!", "Hey!", "Hello there!", "Hi there!", "Good day!", "Greetings!", "Hello, you!", "Hey you!", "Hi, model!", "Hello model!", "Hey there, hello!", "Hello hello!", "Oh, hi!", "Hello again!", "Hallo!", "Hiya!", "Hi, how do you do?"), ("Hey there!", "Hi you!", "Oh, hello!", "Hi hi!", "Hello, model!", "Hi again!")),
    ("Good morning! How can I help you?", ("Good morning!", "Good morning to you!", "A good morning!", "Morning!", "Hello and good morning!", "Good morning, model!"), ("Hi and good morning!", "Good morning there!")),
    ("Good evening! How can I help you?", ("Good evening!", "Good evening to you!", "A good evening!", "Evening!", "Hello and good evening!", "Good evening, model!"), ("Hi and good evening!", "Good evening there!")),
    ("I am fine, thank you. How can I help you?", ("How are you?", "How are you doing?", "How are you today?", "How do you feel?", "How is it going?", "Are you well?", "How's it going?", "Are you fine?", "Hello, how are you?", "How are things?", "Hi, how are you today?", "Are you okay?", "How have you been?"), ("Hi, how are you?", "How are you feeling?", "Hello, how are you doing?", "Are you doing well?", "How do you feel today?")),
    ("You are welcome!", ("Thank you!", "Thanks!", "Thank you very much!", "Thanks a lot!", "Many thanks!", "Great, thank you!", "Thank you, that helps.", "Okay, thanks!", "Thanks, that is good.", "I thank you!", "Nice, thanks!", "Thanks for the help!", "Thank you so much!"), ("Thanks so much!", "Great, thanks!", "Okay, thank you!", "Thank you for the help!", "Thanks very much!")),
    ("Goodbye! See you soon.", ("Goodbye!", "Bye!", "Bye bye!", "See you!", "See you later!", "Good night!", "I have to go.", "That is all, bye!", "Until next time!", "I am leaving now.", "Farewell!", "Okay, bye!", "Goodbye, model!", "See you tomorrow!", "I must go now."), ("See you soon!", "Okay, goodbye!", "I have to go now.", "That is all, goodbye!", "Bye, see you!")),
    ("I am a small demo model that comes with EdgeSpec.", ("Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "Tell me about yourself.", "Who am I talking to?", "What are you called?", "What model are you?", "Do you have a name?", "Which model is this?", "What's your name?", "Are you a language model?"), ("Which model are you?", "Tell me who you are.", "What model is this?", "Please introduce yourself.", "Tell me your name.")),
    ("I can calculate, convert units, sort lists, answer questions about dates, small facts and EdgeSpec, and tell stories.", ("What can you do?", "What can I ask you?", "How can you help me?", "What do you know?", "Help!", "What are you good at?", "What can I ask?", "What are your abilities?", "Help me.", "Which questions can you answer?", "What can you help me with?", "What should I ask you?", "Give me some help."), ("What can you help with?", "Which questions can I ask you?", "What do you do?", "Which things can you do?", "I need help.")),
    ("No, I am only a small program.", ("Are you a human?", "Are you human?", "Are you a person?", "Are you alive?", "Are you real?", "Do you have feelings?", "Are you conscious?", "Do you have a body?", "Can you feel?", "Are you a real person?", "Can you see me?", "Do you sleep?", "Do you eat?", "Do you have hands?", "Are you a living being?", "Do you have a brain?"), ("Are you a real human?", "Are you a living person?", "Do you feel?", "Do you have a heart?")),
    ("I was trained from scratch by a script in the EdgeSpec project.", ("Who made you?", "Who built you?", "Who trained you?", "Where do you come from?", "How were you trained?", "Who created you?", "How were you made?", "Who is your maker?", "Where are you from?", "How did you learn?"), ("How were you built?", "Who is your creator?", "Who has made you?", "How were you created?")),
    ("I am very small: about six million parameters.", ("How big are you?", "How large are you?", "How many parameters do you have?", "How small are you?", "What size are you?", "What is your size?", "Are you a large model?", "Are you small?", "Are you big?"), ("How many parameters are in you?", "Are you a small model?", "Are you large?", "How many parameters have you?")),
    ("I cannot know today's date or time.", ("What day is it today?", "What time is it?", "What is the date today?", "What is today's date?", "Which day is today?", "What year is it?", "Tell me the time.", "What's the time?", "Which month is it?", "Which date is it today?"), ("What date is it today?", "Which year is it?", "Tell me the date.", "What month is it?")),
    ("Why did the model sit on the disk? It had too little memory.", ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "I want to hear a joke.", "A joke, please.", "Can you tell a joke?", "Tell a joke.", "Joke!", "Give me a joke."), ("Do you know any jokes?", "I want a joke.", "Tell me something funny.", "A joke!")),
    ("I am glad to hear that!", ("I am happy.", "I feel good.", "I am fine.", "I am well.", "I feel great today.", "It is a nice day.", "I am very happy today.", "I had a good day.", "I'm fine, thanks.", "I feel very well.", "Life is good."), ("I am happy today.", "I feel great.", "I feel very good today.", "I had a great day.")),
    ("I am sorry to hear that. I hope it gets better.", ("I am sad.", "I feel bad.", "I am tired.", "I am not well.", "I had a bad day.", "I feel sick.", "I am very sad today.", "I am lonely.", "I am angry.", "I feel lonely today.", "I am bored."), ("I feel sad.", "I feel tired today.", "I feel very bad.", "I am sick.")),
    ("Thank you, that is kind!", ("You are great!", "You are good.", "Well done!", "I like you.", "You are nice.", "Good job!", "You are very clever.", "That was good.", "That is great!", "You are smart.", "Nice work!", "I love you.", "You are cool."), ("You are clever.", "That was great!", "Good work!", "You are very nice.", "I like this model.")),
    ("I am sorry. I am only a small demo model.", ("That is wrong.", "You are wrong.", "That was bad.", "You are stupid.", "This is not right.", "Wrong!", "You made a mistake.", "I do not like you.", "That makes no sense.", "You are bad.", "That is not correct.", "That is nonsense."), ("This is wrong.", "That was wrong.", "You are not right.", "That is bad.", "This makes no sense.")),
    ("Okay!", ("Okay.", "Ok.", "Yes.", "I see.", "All right.", "Sure.", "Fine.", "Good.", "Interesting.", "Aha.", "Alright.", "Cool."), ("Ok, good.", "Okay, I see.", "Yes, okay.", "Ah, I see.")),
    ("I speak only a little English.", ("Do you speak English?", "Which languages do you speak?", "Do you speak German?", "Can you speak French?", "What languages do you know?", "Do you understand Spanish?", "Which language do you speak?"), ("Which languages do you know?", "Can you speak German?", "Do you speak Spanish?", "What language do you speak?")),
)  # fmt: skip

_TELL = (
    "My name is {n}.",
    "I am {n}.",
    "I'm {n}.",
    "Call me {n}.",
    "Hello, I am {n}.",
    "Hi, my name is {n}.",
    "You can call me {n}.",
    "Hello, my name is {n}.",
    "Hey, I'm {n}.",
    "People call me {n}.",
    "They call me {n}.",
)
_TELL_UNSEEN = (
    "Hi, I am {n}.",
    "Please call me {n}.",
    "Hello, I'm {n}.",
    "Hey, my name is {n}.",
    "Good morning, I am {n}.",
)
_ASK = (
    "What is my name?",
    "Who am I?",
    "Do you know my name?",
    "What's my name?",
    "Do you remember my name?",
    "Tell me my name.",
    "Can you say my name?",
    "Which name did I give you?",
    "How am I called?",
    "What am I called?",
    "Say who I am.",
    "Can you say how I am called?",
)
_ASK_UNSEEN = (
    "Do you know who I am?",
    "Say my name.",
    "Can you remember my name?",
    "What was my name?",
    "Can you tell me my name?",
)
UNTOLD = "You have not told me your name."


def smalltalk(d: Draw) -> list[Exchange]:
    """One exchange of small talk."""
    reply, seen, unseen = d.pick(INTENTS)
    text = d.phrase(seen, unseen)
    if d.chance(0.3):
        text = text.rstrip(".!?") + d.pick(("", ".", "!"))
    if d.chance(0.2):
        text = text.lower()
    return [Exchange(text, reply, "small talk")]


def tell_name(d: Draw) -> tuple[Exchange, str]:
    """The user gives a name."""
    n = name(d)
    return Exchange(d.phrase(_TELL, _TELL_UNSEEN).format(n=n), f"Nice to meet you, {n}!", "small talk"), n


def ask_name(d: Draw, told: str | None) -> Exchange:
    """The user asks for the name given earlier; `told` is None when none was."""
    reply = UNTOLD if told is None else f"Your name is {told}."
    return Exchange(d.question(d.phrase(_ASK, _ASK_UNSEEN)), reply, "context")
