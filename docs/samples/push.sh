#!/bin/sh
# Pretends to push one notification. In place of the last line stands a request to the merchant's endpoint.
# usage: push.sh MERCHANT KIND TITLE
case $# in
3) ;;
*)
    echo "usage: push.sh MERCHANT KIND TITLE" >&2
    exit 64
    ;;
esac
[ -n "$1" ] || exit 65
