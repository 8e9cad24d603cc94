# shellcheck shell=bash
# The part that patch_before.sh and patch_after.sh share; patch.py puts it before either. Exit code 40: there is nothing to do.
command -v git >/dev/null || exit 40
# shellcheck disable=SC2046  # one name a word
unset $(git rev-parse --local-env-vars)
# What tools make beside the work, as lines of a .gitignore. Git lists no untracked file that they name, and every file of the index.
# By name are only things that nobody writes by hand: `build` and `dist` may hold sources.
MADE='__pycache__/
*.py[co]
*.egg-info/
.eggs/
.pytest_cache/
.mypy_cache/
.ruff_cache/
.hypothesis/
.coverage
node_modules/
.gradle/
*.class
*.o'
left_out() {  # writes $STORE/info/exclude; what the task says in its own file, or in a .gitignore, counts more
    {
        printf '%s\n' "$MADE"
        # Folders that say of themselves that they are a virtual environment or a cache, as Cargo's `target` does.
        find . \( -name .git -o -name node_modules \) -prune -o \( -name pyvenv.cfg -o -name CACHEDIR.TAG \) ! -path $'*\n*' -print |
            sed -n 's|[][*?\\!# ]|\\&|g; s|^\./\(.*/\)[^/]*$|/\1|p'
        cat "$STORE/info/task"
    } >"$STORE/info/exclude"
}
record() {  # writes the work tree as a tree object and prints the tree's id
    left_out || return
    # For a nested repository in the index git would run `git status` inside it, under that repository's own configuration.
    { git ls-files --stage | grep ^160000 | cut -f 2- | git update-index --force-remove --stdin; } || :
    {
        printf '.\0'
        find . -name .git -prune -o -type f -size +32768 -exec printf ':(exclude,literal)%s\0' {} +  # a name may have newlines
    } | git add --all --ignore-errors --pathspec-from-file=- --pathspec-file-nul || [ $? -eq 1 ] || return  # exit code 1: some files can't be read
    git write-tree
}
