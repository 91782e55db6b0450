"""People mark episodes without knowing whose they are, and what their marks say.

form.py      the questions that are put to reviewers
drawing.py   which episodes are shown, in which order and on which side
folder.py    the review's folder: the questions, the drawn episodes, whose they are
answers.py   what reviewers have said: entries that are only ever added
results.py   agreement, means, win rates, and the runs' own judge beside them
"""
