{ok, L} = gen_tcp:listen(8443, [FAMILY, binary, {active, false}, {reuseaddr, true}]),
F = fun(F) ->
    {ok, S} = gen_tcp:accept(L),
    {ok, {A, P}} = inet:peername(S),
    gen_tcp:send(S, io_lib:format("peer ~s ~b~n", [inet:ntoa(A), P])),
    gen_tcp:recv(S, 0, 1000),
    gen_tcp:close(S),
    F(F) end,
F(F).
