"""What queries find in small graphs: the rules of Eclipse Aidge's matcher, seen by running it, and where onnxtile goes beyond."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtile.query.match import Match, with_rivals
from onnxtile.query.names import ALIASES
from onnxtile.system.errors import QueryError
from tests.query.conftest import Graphs, Small, model_from, nodes_from, shown

CHAIN = "a=Relu(x);b=Relu(a);c=Relu(b);d=Tanh(c)"

# What Aidge 0.10.1 finds too: graph, query, matches.
SAME_AS_AIDGE = [
    # Edges
    ("a=Relu(x);b=Add(a,y)", "ReLU->Add", "a:{a,b}"),
    ("a=Relu(x);b=Add(a,y)", "ReLU-1>Add", ""),
    ("a=Relu(x);b=Add(y,a)", "ReLU-1>Add", "a:{a,b}"),
    ("a=Relu(x);b=Add(y,a)", "ReLU-*>Add", "a:{a,b}"),
    ("a=Relu(x);b=Add(y,a)", "ReLU-7>Add", ""),
    ("a=Relu(x);b=Add(y,a)", "ReLU-3-1>Add", ""),
    ("a=Relu(x);b=Add(y,a)", "Add<1-ReLU", "b:{a,b}"),
    ("a=Relu(x);b=Add(y,a)", "Add<*-ReLU", "b:{a,b}"),
    ("a=Relu(x);b=Add(y,a)", "Add<-ReLU", ""),
    ("s,t=Split(x);b=Tanh(t)", "Split-1-0>Tanh", "s:{b,s}"),
    ("s,t=Split(x);b=Tanh(t)", "Split->Tanh", ""),
    ("s,t=Split(x);b=Tanh(t)", "Split-*-0>Tanh", "s:{b,s}"),
    ("s,t=Split(x);b=Tanh(t)", "Tanh<0-1-Split", "b:{b,s}"),
    ("s,t=Split(x);b=Tanh(t)", "Tanh<-1-Split", "b:{b,s}"),
    ("s,t=Split(x);b=Tanh(t)", "Tanh<*-*-Split", "b:{b,s}"),
    # `-` counts the input slots that read the output; graph outputs are none
    ("a=Relu(x);b=Mul(a,a)", "ReLU->Mul", ""),
    ("a=Relu(x);b=Mul(a,a)", "ReLU-1>Mul", ""),
    ("a=Relu(x);b=Mul(a,a)", "ReLU-*>Mul", ""),
    ("a=Relu(x);b=Mul(a,a)", "ReLU~>Mul", "a:{a,b}"),
    ("a=Relu(x);b=Mul(a,a)", "ReLU~*>Mul", "a:{a,b}"),
    ("a=Relu(x);b=Mul(a,a)", "Mul<-ReLU", ""),
    ("a=Relu(x);b=Mul(a,a)", "Mul<1~ReLU", "b:{a,b}"),
    ("a=Relu(x);b=Sigmoid(a);c=Tanh(a)", "ReLU->Sigmoid", ""),
    ("a=Relu(x);b=Sigmoid(a);c=Tanh(a)", "Sigmoid<-ReLU", ""),
    ("a=Relu(x);b=Sigmoid(a);c=Tanh(a)", "Sigmoid<~ReLU", "b:{a,b}"),
    ("s,t=Split(x);b=Tanh(t);c=Relu(s);d=Sqrt(s)", "Split-1-0>Tanh", "s:{b,s}"),
    ("a=Relu(x);b=Sigmoid(a);c=Tanh(a);d=Add(b,c)", "ReLU#1~>Sigmoid->Add#1;ReLU#1~>Tanh-1>Add#1", "a:{a,b,c,d}"),
    # Anchors
    ("a=Sub(x,y);b=Sub(a,z)", "Sub#1->.#1", "a:{a,b}"),
    ("a=Relu(x);b=Mul(a,a)", "ReLU#1~>Mul#1;Mul#1<1~ReLU#1", "a:{a,b}"),
    ("a=Relu(x);b=Mul(a,a)", "ReLU#1~>Mul#1;Mul#1<1~ReLU", ""),
    ("a=Relu(x);b=Mul(a,a)", "ReLU#1~>Mul#1;Mul#1<1~ReLU#2", ""),
    ("a=Relu(x);b=Mul(a,a)", "ReLU#1~>Mul#1;Mul#1<1~.", ""),
    ("a=Relu(x);b=Mul(a,a)", "ReLU#1~>Mul#1;Mul#1<1~.#1", ""),
    ("a=Relu(x);b=Tanh(a)", "ReLU#->Tanh", "a:{a,b}"),
    # Producers are vertices, which only the query takes in
    ("a=Mul(x,W);b=Add(a,V)", "Mul->Add", "a:{a,b}"),
    ("a=Mul(x,W);b=Add(a,V)", "Mul#1->Add;Mul#1<1~Producer", "a:{W,a,b}"),
    ("a=Mul(x,W);b=Add(a,V)", "Mul#1<1-.#1", "a:{W,a}"),
    ("a=Mul(x,W);b=Add(a,V)", "Producer-1>Mul", "W:{W,a}"),
    ("k=Constant();a=Mul(x,k)", "Mul<1-Producer", "a:{a,k}"),
    ("a=Mul(x,W);b=Add(a,W)", "Mul<1-Producer", ""),
    ("a=Mul(x,W);b=Add(a,W)", "Mul<1~Producer", "a:{W,a}"),
    ("a=Mul(x,W);b=Add(a,W)", "Mul#1->Add#1;Mul#1<1~Producer;Add#1<1~Producer", ""),
    ("a=Mul(x,W);b=Add(a,W)", "Mul#1->Add#1;Mul#1<1~Producer#1;Add#1<1~Producer#1", "a:{W,a,b}"),
    ("a=Mul(x,W)", "Mul#1<1~Producer;Mul#1<*~$", "a:{W,a}"),
    # `$`: nothing further on that output and input, seen from that point of the query; `-` says nothing there
    ("a=Sub(x,y);b=Pow(a,E);c=Div(a,b)", "Sub#1~>$", ""),
    ("a=Sub(x,y);b=Pow(a,E);c=Div(a,b)", "Sub#1~>Pow#1;Sub#1~>$", ""),
    ("a=Sub(x,y);b=Pow(a,E);c=Div(a,b)", "Sub#1~>Pow#1-1>Div;Sub#1~>$", "a:{a,b,c}"),
    ("a=Sub(x,y);b=Pow(a,E);c=Div(a,b)", "Sub#1~>Pow#1-1>Div;Sub#1->$", "a:{a,b,c}"),
    ("a=Sub(x,y);b=Pow(a,E);c=Mul(z,a)", "Sub#1~>Pow;Sub#1~>$", "a:{a,b}"),
    ("a=Sub(x,y);b=Pow(a,E);c=Mul(z,a)", "Sub#1~>Pow;Sub#1~*>$", ""),
    ("a=Sub(x,y);b=Pow(a,E);c=Mul(z,a)", "Sub#1~>Pow;Sub#1~1>$", ""),
    ("a=Relu(x)", "ReLU->$", "a:{a}"),
    ("s,t=Split(x);b=Tanh(t)", "Split->$", "s:{s}"),
    ("s,t=Split(x);b=Tanh(t)", "Split-*-0>$", ""),
    ("a=Sub(x,y)", "Sub<~$", "a:{a}"),
    ("b=Relu(x);a=Sub(b,W)", "Sub<~$", ""),
    ("b=Relu(x);a=Sub(b,W)", "Sub<1~$", ""),
    ("a=Relu(x);b=Sqrt(a);c=Exp(a)", "ReLU~>(Sqrt&Exp&$)", "a:{a,b,c}"),
    ("a=Relu(x);b=Sqrt(a);c=Exp(a)", "ReLU~>(Sqrt&$)", ""),
    # Quantifiers
    ("a=Relu(x);b=Relu(a);c=Relu(b);d=Relu(c);e=Relu(d);f=Tanh(e)", "Tanh<-ReLU{9}", "f:{a,b,c,d,e,f}"),
    (CHAIN, "Tanh<-ReLU{2}", "d:{b,c,d}"),
    (CHAIN, "Tanh<-ReLU*", "d:{a,b,c,d}"),
    (CHAIN, "Tanh<-Sigmoid*<-ReLU", "d:{c,d}"),
    (CHAIN, "Tanh<-Sigmoid?<-ReLU", "d:{c,d}"),
    (CHAIN, "Tanh<-Sigmoid+<-ReLU", ""),
    (CHAIN, "Tanh<-(ReLU<-ReLU)*", "d:{b,c,d}"),
    (CHAIN, "Tanh<-(ReLU<-ReLU)+", "d:{b,c,d}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Sigmoid?->Tanh", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Tanh?", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Sqrt?", "a:{a}"),
    ("a=Relu(x);b=Sigmoid(a);c=Tanh(a);d=Tanh(b)", "ReLU~>Sigmoid?~>Tanh", "a:{a,b,d}"),
    ("a=Relu(x);b=Sigmoid(a);c=Tanh(a);d=Tanh(b)", "ReLU~>.*", "a:{a,b,d} | a:{a,c}"),
    ("a=MatMul(x,W);b=Relu(a);c=MatMul(b,V);d=Relu(c);e=Tanh(d)", "(MatMul->ReLU)+->Tanh", "a:{a,b,c,d,e} | c:{c,d,e}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Tanh#1;(Tanh#1->Sqrt)?", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Tanh#1;(Tanh#1->Sqrt)*", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Tanh#1;Tanh#1?->Sqrt", ""),
    ("a=Relu(x);b=Tanh(a);c=Sqrt(b)", "ReLU->Tanh#1;Tanh#1?->Sqrt", "a:{a,b,c}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->Sigmoid#1?->Tanh;Sigmoid#1~>Sqrt", ""),
    # Blocks
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Sqrt(b);e=Sqrt(c)", "ReLU~>(Tanh|Sigmoid)->Sqrt", "a:{a,b,d} | a:{a,c,e}"),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(b)", "Sigmoid<-((Tanh)|(Tanh<-ReLU))", "c:{a,b,c} | c:{b,c}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->(Tanh|Tanh)", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a)", "ReLU->(Tanh|Sqrt)?", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a)", "(ReLU|Tanh)", "a:{a} | b:{b}"),
    ("a=Relu(x);b=Tanh(a)", "(ReLU&Tanh)", "a:{a} | b:{b}"),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "ReLU~>(Tanh&Sigmoid)->Add", ""),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "ReLU~>(Sigmoid&Tanh)->Add", "a:{a,b,c,d}"),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "ReLU~>(Tanh&Sigmoid)-1>Add", "a:{a,b,c,d}"),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "Add<*-(Tanh&Sigmoid)", "d:{b,c,d}"),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "Add<-(Tanh&Sigmoid)", ""),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "ReLU->(Tanh&Sigmoid)", ""),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Sqrt(c)", "ReLU~>(Tanh&Sigmoid#1);Sigmoid#1->Sqrt", "a:{a,b,c,d}"),
    ("a=Relu(x);b=Tanh(a);c=Sqrt(b);d=Exp(b)", "ReLU->Tanh#1;((Tanh#1~>Sqrt)&(Tanh#1~>Exp))", "a:{a,b,c,d}"),
    (
        "a=Relu(x);b=Tanh(a);c=Sqrt(b);d=Exp(b)",
        "ReLU->(Tanh#1|Sigmoid#1);(Sigmoid#1|Tanh#1)~>Sqrt",
        "a:{a,b,c}",
    ),
    (CHAIN, "ReLU->(ReLU->(ReLU->Tanh))", "a:{a,b,c,d}"),
    (CHAIN, "((ReLU->ReLU)->ReLU)->Tanh", "a:{a,b,c,d}"),
    (CHAIN, "(((Tanh)))", "d:{d}"),
    # Which matches
    ("a=Relu(x);b=Sigmoid(a);c=Sigmoid(a)", "ReLU~>Sigmoid", "a:{a,b} | a:{a,c}"),
    ("a=Relu(x);b=Sigmoid(a);c=Sigmoid(a);d=Sqrt(c)", "ReLU~>Sigmoid->Sqrt", "a:{a,c,d}"),
    ("a=Relu(x);b=Sigmoid(a);c=Sigmoid(a);d=Sqrt(c)", "ReLU~>Sigmoid#1;Sigmoid#1->Sqrt", "a:{a,c,d}"),
    ("a=Relu(x);b=Relu(x);c=Add(a,b)", "ReLU-*>Add", "a:{a,c} | b:{b,c}"),
    ("a=Relu(x);b=Relu(x);c=Add(a,b)", "Add<*-ReLU", "c:{a,c}"),
    ("a=Relu(x);b=Relu(x);c=Add(a,b)", "Add#1<*-ReLU;Add#1<*-ReLU", "c:{a,b,c}"),
    ("s=Sigmoid(x);t=Tanh(x);a=Relu(s);b=Relu(t);c=Add(a,b)", "Add<*-ReLU<-Sigmoid", "c:{a,c,s}"),
    # Types
    ("a=Gelu(x);b=Tanh(a)", "Gelu->Tanh", "a:{a,b}"),
    ("a=my.dom::Foo(x);b=Tanh(a)", "my.dom::Foo->Tanh", "a:{a,b}"),
    ("a=my.dom::Foo(x);b=Tanh(a)", "Foo->Tanh", "a:{a,b}"),
    ("a=com.microsoft::FusedMatMul(x,W);b=FusedMatMul(a)", "FusedMatMul", "a:{a} | b:{b}"),
]


@pytest.mark.parametrize(("text", "query", "expected"), SAME_AS_AIDGE)
def test_what_aidge_finds(graph: Graphs, text: str, query: str, expected: str) -> None:
    assert graph(text, opset=20).find(query) == expected


# What Aidge does not find, or finds without looking: graph, query, matches.
BEYOND_AIDGE = [
    # The node of a repeated anchor is the same node, not only one of the same type.
    ("a=Sub(x,y);b=Pow(a,P);c=Sqrt(b);d=Div(z,c);e=Div(a,w)", "Sub#1~>Pow->Sqrt-*>Div#1;Sub#1~*>Div#1", ""),
    ("a=Sub(x,y);b=Pow(a,P);c=Sqrt(b);d=Div(a,c)", "Sub#1~>Pow->Sqrt-*>Div#1;Sub#1~*>Div#1", "a:{a,b,c,d}"),
    ("a=Sub(x,y);b=Add(a,z);c=Sub(b,w)", "Sub#1->Add->Sub#1", ""),
    ("a=Relu(x);b=Relu(y);c=Add(a,b)", "Add#1<-ReLU#1;Add#1<1-ReLU#1", ""),
    ("a=Relu(x);b=Relu(y);c=Add(a,b)", "Add#1<-ReLU#1;Add#1<1-ReLU#2", "c:{a,b,c}"),
    (
        "a=Relu(x);b=Sigmoid(a);c=Sigmoid(a);d=Tanh(b);e=Add(c,b)",
        "ReLU#1~>Sigmoid#1~>Tanh;ReLU#1~>Sigmoid#1~1>Add",
        "a:{a,b,d,e}",
    ),
    # An operator of another domain that has the name of one of ONNX is another operator.
    ("a=my.dom::Relu(x);b=Relu(a)", "Relu", "b:{b}"),
    ("a=my.dom::Relu(x);b=Relu(a)", "my.dom::Relu", "a:{a}"),
    # Quantifiers give back.
    (CHAIN, "ReLU->ReLU*->ReLU", "a:{a,b,c} | b:{b,c}"),
    (CHAIN, "ReLU->ReLU?->ReLU->Tanh", "a:{a,b,c,d} | b:{b,c,d}"),
    (CHAIN, "ReLU->(ReLU->ReLU)*->ReLU", "a:{a,b} | b:{b,c}"),
    # Backward, every input is tried.
    ("s=Sigmoid(x);t=Tanh(x);a=Relu(s);b=Relu(t);c=Add(a,b)", "Add<*-ReLU<-Tanh", "c:{b,c,t}"),
    ("s=Sigmoid(x);t=Tanh(x);a=Relu(s);b=Relu(t);c=Add(a,b)", "Add<*-.<-Tanh", "c:{b,c,t}"),
    # A computed constant is a Producer, by its own type as well.
    ("s=Sqrt(K);a=Mul(x,s)", "Mul<1~Producer", "a:{a,s}"),
    ("s=Sqrt(K);a=Mul(x,s)", "Mul<1~Sqrt<-Producer", "a:{K,a,s}"),
    # The root may be optional or repeated, and needs no anchor.
    ("a=Relu(x);b=Tanh(a)", "ReLU?->Tanh", "a:{a,b} | b:{b}"),
    (CHAIN, "ReLU*->Tanh", "a:{a,b,c,d} | b:{b,c,d} | c:{c,d} | d:{d}"),
    (CHAIN, "ReLU+->Tanh", "a:{a,b,c,d} | b:{b,c,d} | c:{c,d}"),
    (CHAIN, "ReLU{2}->Tanh", "b:{b,c,d} | c:{c,d}"),
    (CHAIN, "ReLU#1+->Tanh", "a:{a,b,c,d} | b:{b,c,d} | c:{c,d}"),
    (CHAIN, "(ReLU->ReLU)*->Tanh", "b:{b,c,d} | d:{d}"),
    (CHAIN, "Sigmoid*", ""),
    ("a=Relu(x);b=Tanh(a)", "((ReLU->Tanh)|Tanh)", "a:{a,b} | b:{b}"),
    ("a=Relu(x);b=Tanh(a);c=Sqrt(b)", "ReLU->Tanh#1;Tanh#1+->Sqrt", "a:{a,b,c}"),
    # A clause may have its anchor at its far end, or in the middle.
    ("a=Relu(x);b=Add(a,y);c=Tanh(b)", "Add#1->Tanh;ReLU->Add#1", "b:{a,b,c}"),
    ("z=Exp(x);a=Relu(z);b=Add(a,y);c=Tanh(b)", "Add#1->Tanh;Exp->ReLU?->Add#1", "b:{a,b,c,z}"),
    ("z=Exp(x);b=Add(z,y);c=Tanh(b)", "Add#1->Tanh;Exp->ReLU?->Add#1", "b:{b,c,z}"),
    ("z=Exp(x);a=Relu(z);b=Add(y,a);c=Tanh(b)", "Add#1;Exp->(ReLU|Sqrt)-1>Add#1->Tanh", "b:{a,b,c,z}"),
    ("a=Relu(x);b=Add(y,a)", "Add#1;Add#1<1-ReLU", "b:{a,b}"),
    # Any member of a parallel may be named later.
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Sqrt(c)", "ReLU~>(Sigmoid#1&Tanh);Sigmoid#1->Sqrt", "a:{a,b,c,d}"),
    ("a=Relu(x);b=Tanh(a);c=Sigmoid(a);d=Add(b,c)", "ReLU~>(Tanh#1&Sigmoid#1);(Tanh#1&Sigmoid#1)-1>Add", "a:{a,b,c,d}"),
    # A repetition binds its anchor anew in each round: after it, the anchor is the last.
    (CHAIN, "Tanh<-ReLU#1*;ReLU#1<~$", "d:{a,b,c,d}"),
    (
        "a=MatMul(x,W);b=Relu(a);c=MatMul(b,V);d=Relu(c)",
        "(MatMul#1->ReLU#1)+;MatMul#1<1-Producer",
        "a:{V,a,b,c,d} | c:{V,c,d}",
    ),
]


@pytest.mark.parametrize(("text", "query", "expected"), BEYOND_AIDGE)
def test_what_onnxtile_finds_beyond(graph: Graphs, text: str, query: str, expected: str) -> None:
    assert graph(text).find(query) == expected


QKV = "q=MatMul({0},A);k=MatMul({0},B);v=MatMul({0},C);s=Add(q,k);t=Sub(s,v)"

# A node that is only looked at, '@': graph, query, matches.
LOOKED_AT = [
    # Three products of one value, which may be the result of a node, an input of the graph or a constant
    (
        QKV.format("x"),
        "MatMul#q->Add#1->Sub#1<1-MatMul#v;MatMul#q<~@.#x;MatMul#v<~@.#x;Add#1<1-MatMul<~@.#x",
        "q:{k,q,s,t,v}",
    ),
    (QKV.format("r") + ";r=Relu(x)", "MatMul#q->Add->Sub<1-MatMul#v<~@.#x~>MatMul#q", "q:{q,s,t,v}"),
    (QKV.format("x"), "@.#x~>MatMul#q->Add#1->Sub#1;@.#x~>MatMul#k-1>Add#1;@.#x~>MatMul#v-1>Sub#1", "x:{k,q,s,t,v}"),
    ("r=Relu(x);" + QKV.format("r"), "@Relu#x~>MatMul#q->Add#1;@Relu#x~>MatMul#k-1>Add#1", "r:{k,q,s}"),
    (QKV.format("D"), "@Producer#x~>MatMul#q->Add#1;@Producer#x~>MatMul-1>Add#1", "D:{k,q,s}"),
    # The same anchor is the same node
    ("q=MatMul(x,A);k=MatMul(y,B);s=Add(q,k)", "Add#1<-MatMul<~@.#x;Add#1<1-MatMul<~@.#x", ""),
    ("q=MatMul(x,A);k=MatMul(x,B);s=Add(q,k)", "Add#1<-MatMul<~@.#x;Add#1<1-MatMul<~@.#x", "s:{k,q,s}"),
    ("r=Relu(x);q=MatMul(r,A);k=MatMul(x,B);s=Add(q,k)", "Add#1<-MatMul<~@.#x;Add#1<1-MatMul<~@.#x", ""),
    ("p=Relu(x);q=MatMul(p,A);k=MatMul(p,B);s=Add(q,k)", "Add#1<-MatMul<~@.#x;Add#1<1-MatMul<~@.#x", "s:{k,q,s}"),
    # Every other node of the query is another one; what is looked at is not in the match
    ("a=Relu(x);b=Tanh(a);c=Exp(a);d=Add(b,c)", "Add#1<-Tanh<~@Relu;Add#1<1-Exp<~@Relu", ""),
    ("a=Relu(x);b=Tanh(a);c=Exp(a);d=Add(b,c)", "Add#1<-Tanh<~Relu;Add#1<1-Exp<~@Relu", ""),
    ("a=Relu(x);b=Tanh(a)", "Tanh<-@Relu", "b:{b}"),
    ("a=Relu(x);b=Tanh(a)", "@Relu->Tanh", "a:{b}"),
    ("a=Relu(x);b=Tanh(a)", "Relu->@Tanh", "a:{a}"),
    ("a=Relu(x);b=Tanh(a)", "Tanh<-@Exp", ""),
    ("a=Relu(x)", "Relu<-@.", "a:{a}"),
    ("a=Relu(x)", "Relu<-.", ""),
    # It is followed further, has tests, and repeats
    ("a=Relu(x);b=Tanh(a);c=Exp(b)", "Exp<-@Tanh<-Relu", "c:{a,c}"),
    ("a=Relu(x);b=Tanh(a);c=Tanh(b);d=Exp(c)", "Exp<-@Tanh*<-Relu", "d:{a,d}"),
    ("a=Relu(x);b=Tanh(a);c=Tanh(b);d=Exp(c)", "Exp<-@Tanh?<-Relu", ""),
    ("a=Softmax(x){axis=0};b=Tanh(a)", "Tanh<-@Softmax[axis == 0]", "b:{b}"),
    ("a=Softmax(x){axis=1};b=Tanh(a)", "Tanh<-@Softmax[axis == 0]", ""),
    ("s,t=Split(x);b=Tanh(t);c=Exp(t);d=Add(b,c)", "Add#1<-Tanh<-1~@Split#1;Add#1<1-Exp<-1~@Split#1", "d:{b,c,d}"),
    ("a=Relu(x);b=Tanh(a);c=Add(b,a)", "Add#1<-Tanh<-(@Relu | @Exp)", ""),
    ("a=Relu(x);b=Tanh(a);c=Add(b,a)", "Add#1<-Tanh<~(@Relu | @Exp)", "c:{b,c}"),
    # `$`: no node further than those that the query names
    ("a=Relu(x);b=Tanh(a);c=Exp(a)", "Relu#1~>Tanh;Relu#1~>@Exp;Relu#1~>$", "a:{a,b}"),
    ("a=Relu(x);b=Tanh(a);c=Exp(a);d=Neg(a)", "Relu#1~>Tanh;Relu#1~>@Exp;Relu#1~>$", ""),
]


@pytest.mark.parametrize(("text", "query", "expected"), LOOKED_AT)
def test_a_node_that_is_only_looked_at(graph: Graphs, text: str, query: str, expected: str) -> None:
    assert graph(text).find(query) == expected


# Nodes that change nothing are seen through, and then part of the match: graph, query, matches.
UNCHANGED = [
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Relu->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Tanh<-Relu", "b:{a,b,i}"),
    ("a=Relu(x);i=Identity(a);j=Identity(i);b=Tanh(j)", "Relu->Tanh", "a:{a,b,i,j}"),
    ("a=Relu(x);i=Identity(a);b=Add(y,i)", "Relu-1>Add", "a:{a,b,i}"),
    ("a=Relu(x);i=Identity(a);b=Add(y,i)", "Relu->Add", ""),
    ("s,t=Split(x);i=Identity(t);b=Tanh(i)", "Split-1-0>Tanh", "s:{b,i,s}"),
    ("s,t=Split(x);i=Identity(t);b=Tanh(i)", "Tanh<-1-Split", "b:{b,i,s}"),
    # It may be named, and `.` is the nearest node
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Relu->Identity->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Relu->Identity?->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Relu->.", "a:{a,i}"),
    # `-` asks at each node on the way
    ("a=Relu(x);i=Identity(a);b=Tanh(i);c=Exp(i)", "Relu->Tanh", ""),
    ("a=Relu(x);i=Identity(a);b=Tanh(i);c=Exp(a)", "Relu->Tanh", ""),
    ("a=Relu(x);i=Identity(a);b=Tanh(i);c=Exp(i)", "Relu~>Tanh", "a:{a,b,i}"),
    # `$` knows it; what is only looked at leaves it outside
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Relu#1->Tanh;Relu#1->$", "a:{a,b,i}"),
    ("a=Relu(x);i=Identity(a);b=Tanh(i)", "Tanh<-@Relu", "b:{b}"),
    ("a=Relu(x);i=Identity(x);b=Add(a,i)", "Relu#1->Add#1;Relu#1<~@.#x;Add#1<1~@.#x", "a:{a,b}"),
    ("i=Identity(x);q=MatMul(i,A);k=MatMul(x,B);s=Add(q,k)", "Add#1<-MatMul<~@.#x;Add#1<1-MatMul<~@.#x", "s:{k,q,s}"),
    # Operators that may change something
    ("a=Relu(x);i=Cast(a){to=1};b=Tanh(i)", "Relu->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i=Cast(a){to=11};b=Tanh(i)", "Relu->Tanh", ""),
    ("a=Relu(x);i=Transpose(a){perm=[0,1]};b=Tanh(i)", "Relu->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i=Transpose(a);b=Tanh(i)", "Relu->Tanh", ""),
    ("a=Relu(x);i=my.dom::Identity(a);b=Tanh(i)", "Relu->Tanh", ""),
    ("a=Relu(x);i=Dropout(a);b=Tanh(i)", "Relu->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i,m=Dropout(a);b=Tanh(i);c=Not(m)", "Relu->Tanh", ""),
    ("a=Relu(x);i=Concat(a){axis=0};b=Tanh(i)", "Relu->Tanh", "a:{a,b,i}"),
    ("a=Relu(x);i=Concat(a,y){axis=0};b=Tanh(i)", "Relu->Tanh", ""),
]


@pytest.mark.parametrize(("text", "query", "expected"), UNCHANGED)
def test_nodes_that_change_nothing(graph: Graphs, text: str, query: str, expected: str) -> None:
    assert graph(text).find(query) == expected


# Each round of a block is entered over the edge before the block, as in Aidge; at the root that is `->`: graph, query, matches.
ROUNDS = [
    (
        "a=Relu(x);s,t=Split(a);b=Tanh(t);u,v=Split(b);c=Tanh(v);d=Exp(c)",
        "(Split-1-0>Tanh)+->Exp",
        "s:{b,c,d,s,u} | u:{c,d,u}",
    ),
    (
        "a=Relu(x);s,t=Split(a);b=Tanh(t);u,v=Split(b);c=Tanh(v);d=Exp(c)",
        "Relu->(Split-1-0>Tanh)+->Exp",
        "a:{a,b,c,d,s,u}",
    ),
    ("a=Relu(x);b=Add(y,a);c=Tanh(b);d=Add(z,c);e=Tanh(d);f=Exp(e)", "Relu-1>(Add->Tanh)+->Exp", "a:{a,b,c,d,e,f}"),
    ("a=Relu(x);b=Add(y,a);c=Tanh(b);d=Add(c,z);e=Tanh(d);f=Exp(e)", "Relu-1>(Add->Tanh)+->Exp", ""),
    ("a=Relu(x);b=Add(y,a);c=Tanh(b);d=Add(z,c);e=Tanh(d);f=Exp(e)", "Relu-1>(Add->Tanh){2}->Exp", "a:{a,b,c,d,e,f}"),
    # Rounds over another edge: the first stands by itself
    (
        "a=Relu(x);b=Add(y,a);c=Tanh(b);d=Add(c,z);e=Tanh(d);f=Exp(e)",
        "Relu-1>Add->Tanh->(Add->Tanh)*->Exp",
        "a:{a,b,c,d,e,f}",
    ),
    ("s,t=Split(x);u,v=Split(t);p,q=Split(v);d=Exp(q)", "Split#1-1-0>Split+-1-0>Exp", "s:{d,p,s,u} | u:{d,p,u}"),
    ("s,t=Split(x);u,v=Split(t);p,q=Split(v);d=Exp(q)", "Exp<0-1-Split+", "d:{d,p,s,u}"),
]


@pytest.mark.parametrize(("text", "query", "expected"), ROUNDS)
def test_each_round_is_entered_over_the_edge_before_it(graph: Graphs, text: str, query: str, expected: str) -> None:
    assert graph(text).find(query) == expected


def test_anchors_say_which_node_they_are_bound_to(graph: Graphs) -> None:
    (match,) = graph("a=Relu(x);b=Mul(a,W)").matches("ReLU#r->Mul#1;Mul#1<1-Producer#w")
    anchors = {"ReLU#r": "a", "Mul#1": "b", "Producer#w": "W"}
    assert match.to_dict() == {"root": "a", "module": "", "nodes": ["a", "b", "W"], "anchors": anchors}


ERRORS = [
    ("Relu->Tanh;Tanh->Sqrt", (11, 21), "this clause is not connected"),
    ("Relu->Tanh;Sqrt#1", (11, 17), "this clause is not connected"),
    ("Relu#1->Tanh;(Relu#1|Sqrt#2)->Exp", (13, 33), "this clause is not connected"),
    ("Relu->$->Tanh", (6, 7), "nothing can follow '$'"),
    ("Relu->(Tanh->$)->Sqrt", (13, 14), "nothing can follow '$'"),
    ("$", (0, 1), "'$' needs an edge"),
    ("Relu->Add#1;Exp->Tanh?-1>Add#1", (17, 22), "a repetition before"),
    ("Relu->Add#1;Exp->(Tanh&Sqrt)->Add#1", (18, 27), "this cannot stand before"),
    ("@Relu->@Tanh", (0, 12), "all nodes are only looked at"),
    ("Relu<-@.#1;.#1->Tanh", (11, 14), ".#1 is only looked at in one place and in the match in another"),
    ("Relu->Tahn", (6, 10), "no operator is called 'Tahn'"),
    ("((((((((((A{9}){9}){9}){9}){9}){9}){9}){9}){9}){9})", (0, 51), "the query is too large"),
]


@pytest.mark.parametrize(("query", "span", "reason"), ERRORS)
def test_queries_that_cannot_match_are_errors(graph: Graphs, query: str, span: tuple[int, int], reason: str) -> None:
    with pytest.raises(QueryError) as caught:
        graph("A=Relu(x)").find(query.replace("A{9}", "Relu{9}") if "{9}" in query else query)
    assert caught.value.reason.startswith(reason)
    if "{9}" not in query:
        assert caught.value.span == span


@pytest.mark.parametrize(
    ("name", "hint"),
    [("MatMull", "MatMul"), ("relu", "Relu"), ("LayerNormalisation", "LayerNormalization"), ("conv2d", "Conv2D")],
)
def test_an_unknown_name_comes_with_the_nearest_known_one(graph: Graphs, name: str, hint: str) -> None:
    with pytest.raises(QueryError) as caught:
        graph("a=Relu(x)").find(f"Relu->{name}")
    assert caught.value.hint is not None and hint in caught.value.hint
    assert caught.value.span == (6, 6 + len(name))


# Graphs that are not simple


def test_one_value_on_two_inputs_is_one_vertex(graph: Graphs) -> None:
    small = graph("a=Relu(x);b=Mul(a,a);c=Tanh(b)")
    assert small.find("Mul#1<~ReLU#1;Mul#1<1~ReLU#1") == "b:{a,b}"
    assert small.find("ReLU~*>.") == "a:{a,b}"


def test_unnamed_nodes_are_called_by_their_first_output(graph: Graphs) -> None:
    model = model_from("a=Relu(x);b=Tanh(a)")
    for node in model.graph.node:
        node.name = ""
    assert graph.of(model).find("ReLU->Tanh") == "a:{a,b}"


def test_nodes_of_one_name_are_still_different_nodes(graph: Graphs) -> None:
    model = model_from("a=Relu(x);b=Relu(a)")
    for node in model.graph.node:
        node.name = "same"
    small = graph.of(model)
    (match,) = small.matches("ReLU->ReLU")
    assert [node.outputs[0].name for node in match.nodes] == ["a", "b"]


def test_inputs_that_are_left_out_lead_nowhere(graph: Graphs) -> None:
    small = graph("a=Relu(x);b=Clip(a,,H)")
    assert small.find("Clip#1<2-Producer;Clip#1<-ReLU") == "b:{H,a,b}"
    assert small.find("Clip<1~.") == ""
    assert small.find("Clip<1~$") == "b:{b}"


def test_outputs_that_are_left_out_count(graph: Graphs) -> None:
    model = model_from("s,t=Split(x);b=Tanh(t)")
    model.graph.node[0].output[0] = ""
    del model.graph.output[0]
    model.graph.output[0].name = "b"
    assert graph.of(model).find("Split-1-0>Tanh") == "s:{b,s}"


def test_a_node_without_outputs_can_be_matched(graph: Graphs) -> None:
    model = model_from("a=Relu(x);b=Tanh(a)")
    sink = helper.make_node("Sink", ["a"], [], name="sink", domain="my.dom")
    model.graph.node.append(sink)
    small = graph.of(model)
    assert small.find("ReLU~>my.dom::Sink") == "a:{a,sink}"
    assert small.find("my.dom::Sink->$") == "sink:{sink}"
    assert small.find("my.dom::Sink->.") == ""
    assert small.find("Producer") == ""


def test_a_graph_without_nodes_has_no_matches(graph: Graphs) -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph([], "empty", [info], [info]))
    assert graph.of(model).find(".") == ""


# Bodies and functions


def _branching() -> onnx.ModelProto:
    model = model_from("a=Relu(x);b=Tanh(a);k=Sqrt(K)", outputs=["a"])
    branches = {}
    for name, text in (("then_branch", "t=Relu(a);u=Tanh(t);p=Mul(u,k)"), ("else_branch", "e=Relu(a);q=Mul(e,K)")):
        nodes = nodes_from(text)
        result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [result])
    conditional = helper.make_node("If", ["C"], ["i"], name="i")
    conditional.attribute.extend(helper.make_attribute(name, branch) for name, branch in branches.items())
    model.graph.node.append(conditional)
    model.graph.initializer.append(helper.make_tensor("C", TensorProto.BOOL, [], [True]))
    model.graph.output.append(helper.make_tensor_value_info("i", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("ReLU->Tanh", "t:{t,u}"),
        ("ReLU~>Tanh", "a:{a,b} | t:{t,u}"),
        ("ReLU<~ReLU", ""),
        ("Mul#1<1~Producer", "p:{k,p} | q:{K,q}"),
        ("Producer~1>Mul", "K:{K,q} | k:{k,p}"),
        ("If<-Producer", "i:{C,i}"),
    ],
)
def test_bodies_are_searched_and_see_constants_from_around_them(graph: Graphs, query: str, expected: str) -> None:
    assert graph.of(_branching()).find(query) == expected


def test_bodies_of_local_functions_are_searched(graph: Graphs) -> None:
    model = model_from("a=my.dom::Block(x);b=Tanh(a)")
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("my.dom", "Block", ["p"], ["r"], nodes_from("q=Relu(p);r=Tanh(q)"), opsets)
    model.functions.append(function)
    small = graph.of(model)
    assert small.find("ReLU->Tanh") == "q:{q,r}"
    assert small.find("my.dom::Block->Tanh") == "a:{a,b}"


def test_bodies_of_local_functions_have_constants_and_an_opset_of_their_own(graph: Graphs) -> None:
    """Before opset 13 the axis of Softmax was 1 unless said."""
    model = model_from("a=my.dom::Old(x);b=Softmax(a)")
    nodes = nodes_from("k=Constant();q=Softmax(p);r=Mul(q,k)")
    model.functions.append(helper.make_function("my.dom", "Old", ["p"], ["r"], nodes, [helper.make_opsetid("", 11)]))
    small = graph.of(model)
    assert small.find("Softmax[axis == 1]") == "q:{q}"
    assert small.find("Softmax[axis == -1]") == "b:{b}"
    assert small.find("Mul[constant == 1]<1-Producer") == "r:{k,r}"


# Disjoint matches


def _disjoint(small: Small, query: str) -> list[Match]:
    return [match for match, rival in with_rivals(small.matches(query), small.constants) if rival is None]


def _kept(graph: Graphs, text: str, query: str) -> list[str]:
    small = graph(text)
    return [shown(match) for match in _disjoint(small, query)]


def test_of_overlapping_matches_the_longest_counts(graph: Graphs) -> None:
    assert _kept(graph, CHAIN, "ReLU->ReLU*") == ["a:{a,b,c}"]
    assert _kept(graph, "a=Relu(x);b=Relu(a);c=Relu(b);d=Relu(c)", "ReLU->ReLU") == ["a:{a,b}", "c:{c,d}"]


def test_constants_may_be_shared(graph: Graphs) -> None:
    assert _kept(graph, "a=Mul(x,W);b=Mul(a,W)", "Mul<1~Producer") == ["a:{W,a}", "b:{W,b}"]
    assert _kept(graph, "s=Sqrt(K);a=Mul(x,s);b=Mul(a,s)", "Mul<1~Producer") == ["a:{a,s}", "b:{b,s}"]
    assert _kept(graph, "a=Mul(x,W)", "Producer") == []


LATTICE = "a=Relu(x);b=Relu(x);c=Add(a,b);d=Tanh(a);e=Add(d,c);f=Relu(e);g=Add(f,b);h=Mul(g,g);i=Sqrt(h);j=Add(i,d)"


@pytest.mark.parametrize(
    "query", [".~*>.", "ReLU~*>Add~*>.", ".~*>.~*>.~*>.", ".~>(.&.)", "Add#1<*~.;Add#1<*~.;Add#1~*>.*"]
)
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_nodes_in_the_file_changes_nothing(graph: Graphs, query: str, seed: int) -> None:
    lines = LATTICE.split(";")
    made: set[str] = {"x"}
    shuffled: list[str] = []
    draw = random.Random(seed)
    while lines:
        free = [line for line in lines if set(line[line.index("(") + 1 : -1].split(",")) <= made]
        line = draw.choice(free)
        lines.remove(line)
        shuffled.append(line)
        made.add(line[0])
    original, other = graph(LATTICE), graph(";".join(shuffled))
    assert other.find(query) == original.find(query)
    first, second = (_disjoint(small, query) for small in (original, other))
    assert [match.to_dict() for match in first] == [match.to_dict() for match in second]


# Limits: an error, and soon


def _chain(length: int) -> str:
    return ";".join(["v0=Relu(x)", *(f"v{i + 1}=Relu(v{i})" for i in range(length - 1))])


def _ladder(length: int) -> str:
    return ";".join(["v0=Relu(x)", *(f"v{i + 1}=Add(v{i},v{i})" for i in range(length - 1))])


_MANY = 1_500


@pytest.fixture(name="open_graphs", scope="module")
def fixture_open_graphs(graph: Graphs) -> dict[str, Small]:
    """A chain with more nodes than a match may have here, and a ladder with two ways at each; each has a Tanh that no way reaches."""
    return {"chain": graph(f"t=Tanh(x);{_chain(_MANY + 200)}"), "ladder": graph(f"{_ladder(_MANY)};y=Tanh(x)")}


@pytest.mark.parametrize(
    ("name", "query"),
    [
        *(("chain", query) for query in ("(.~>.)*", "Relu+", ".~>.*~>.*~>.*~>Tanh", "(.~>.)*~>(.~>.)*~>Tanh")),
        *(("ladder", query) for query in ("(.*~>.*)*~>Tanh", "((((.?)*)*)*)*~>Tanh", ".~*>(.|Relu|Add)*~>Tanh")),
    ],
)
def test_a_query_with_too_many_nodes_or_ways_is_an_error(
    open_graphs: dict[str, Small], name: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxtile.query.match.MAX_NODES", _MANY)
    with pytest.raises(QueryError, match="the query leaves too much open"):
        open_graphs[name].find(query)


@pytest.mark.parametrize(
    "query", ["Producer~1>Add", "Add<1~Producer", "Add<1-Producer", "Producer~1>Add->Add", "Add#1<1~Producer~1>Add"]
)
def test_a_constant_that_thousands_share_is_no_trap(graph: Graphs, query: str) -> None:
    count = 2_000
    text = ";".join(f"a{i}=Add(x{i % 7},W)" for i in range(count))
    small = graph(text)
    try:
        found = small.matches(query)
    except QueryError as error:
        assert "leaves too much open" in error.reason
        assert query == "Add#1<1~Producer~1>Add"
    else:
        assert len(found) in {0, count}


def test_a_match_may_have_thousands_of_nodes(graph: Graphs) -> None:
    (match,) = graph(f"y=Tanh(x);{_chain(4_000).replace('x', 'y')}").matches("Tanh->Relu*")
    assert len(match.vertices) == 4_001


def test_searching_at_the_rarest_node_changes_nothing(graph: Graphs) -> None:
    """Roots are found from the rarest node back; with an observer every root is tried, which must come to the same."""
    from onnxtile.query.match import Matcher, compiled

    text = ";".join(
        f"r{i}=Relu(x);m{i}=Mul(r{i},W);s{i}=Sub(m{i},r{i});{'t' if i % 3 else 'u'}{i}={'Tanh' if i % 3 else 'Sqrt'}(s{i})"
        for i in range(30)
    )
    small = graph(text)
    for query in (
        "Relu#1~>Mul->Sub#1~>Sqrt;Relu#1~1>Sub#1",
        "Relu~>Mul#1->Sub~>(Sqrt|Tanh);Mul#1<1~Producer",
        "Relu~*>((Mul->Sub#1)&Sub#1);Sub#1->Sqrt",
        "Mul->Sub#1;Sqrt<-Sub#1",
        "Relu~>Mul?~>Sub->Sqrt",
    ):
        program = compiled(query)
        matcher = Matcher(small.model, small.constants)
        everywhere = matcher.find(program, observe=lambda _: None)
        assert [shown(match) for match in matcher.find(program)] == [shown(match) for match in everywhere] != []


def test_constants_on_two_inputs_need_two_of_them(graph: Graphs) -> None:
    arrays = {"K": np.zeros(1, np.float32), "L": np.ones(1, np.float32)}
    small = graph("a=Where(c,K,L)", constants=arrays)
    assert small.find("Where#1<*~Producer;Where#1<*~Producer") == "a:{K,L,a}"
    assert small.find("Where#1<*~Producer;Where#1<*~Producer;Where#1<*~Producer") == ""


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_stands_for_an_operator_of_onnx(graph: Graphs, alias: str) -> None:
    assert onnx.defs.has(ALIASES[alias])
    assert graph(f"a={ALIASES[alias]}(x)").find(alias) == "a:{a}"
