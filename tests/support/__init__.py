"""Servers, clients, files and checks that tests of several rooms share.

Imported as `from support.ports import free_port`: pytest puts the folder of tests/conftest.py on the path.
"""
