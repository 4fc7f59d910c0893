"""What runs inside the sandbox: standard library only. The sandbox sees this folder, and nothing else of the plugin.

python -s -S -P -B -c "import sys; sys.path.insert(0, FOLDER); from inside.sandbox import main; main()"
"""
