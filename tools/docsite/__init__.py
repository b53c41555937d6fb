"""The documentation as executed pages: one folder of HTML files that open offline.

`python -m docsite` (with tools/ on the path) executes the notebooks and the recipes of docs/ and writes the pages;
`python -m docsite reference` writes docs/reference.md anew. Nothing of it belongs to the product.
"""
