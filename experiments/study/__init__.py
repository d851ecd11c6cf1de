"""The tied-embedding study: which scale should a shared embedding table get?"""
