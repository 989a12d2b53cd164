# An SDK root with hostview's drop-in libraries. To be sourced: . DIR/setenv.sh
if [ -n "${BASH_SOURCE:-}" ]; then
    ASCEND=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
else
    ASCEND=${ASCEND:-$(pwd)}
fi
export ASCEND
export ASCEND_HOME_PATH="$ASCEND"
export LD_LIBRARY_PATH="$ASCEND/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
