"""The one exception of the study."""


class StudyError(Exception):
    """Something that the person at the keyboard can put right; the message says how."""
